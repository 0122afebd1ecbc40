// Entry of a grammar thread: compiles grammars for the model's vocabulary and computes masks.
import { type MessagePort, workerData } from 'node:worker_threads';
import { textOf } from '../../../engine/model-text.ts';
import { GrammarHost, type GrammarVocabulary } from '../../../runtime/grammars/grammar-host.ts';
import type { GrammarThreadData, ToGrammarThread } from '../../../runtime/grammars/grammar-protocol.ts';
import { markerTokensOf } from '../../../text/tools/marker-tokens.ts';
import { openModel } from '../../../weights/open-model.ts';
import { eosIdsOf } from './served-model.ts';

const { model, memory, port } = workerData as GrammarThreadData & { readonly port: MessagePort };

function readVocabulary(): GrammarVocabulary {
  const files = openModel(model, false);
  try {
    const text = textOf(files);
    if (text === undefined) throw new Error('Cannot compile grammars: the model has no tokenizer');
    const { tokenizer, toolTemplate, chatTemplate = toolTemplate } = text;
    const templates = chatTemplate === undefined ? [] : [chatTemplate, toolTemplate ?? chatTemplate];
    const markers = new Set(templates.flatMap((template) => [...markerTokensOf({ ...text, chatTemplate: template })]));
    // A special token has no text in an output, but for markers of calls and reasoning.
    const bytesOf = (id: number) => (markers.has(id) ? tokenizer.tokenBytes(id) : tokenizer.decodeBytes(id));
    return { size: files.config.vocabSize, bytesOf, eosIds: eosIdsOf(files, tokenizer) };
  } finally {
    files.close();
  }
}

const host = new GrammarHost(readVocabulary(), memory);
let last: Promise<void> = Promise.resolve();

port.on('message', (message: ToGrammarThread) => {
  last = last.then(async () => {
    const answer = await host.receive(message);
    if (answer !== undefined) port.postMessage(answer);
  });
});
