// Entry of a grammar thread: compiles grammars for the model's vocabulary and computes masks.
import { type MessagePort, workerData } from 'node:worker_threads';
import { textOf } from '../../../engine/model-text.ts';
import { GrammarHost, type GrammarVocabulary } from '../../../runtime/grammars/grammar-host.ts';
import type { GrammarThreadData, ToGrammarThread } from '../../../runtime/grammars/grammar-protocol.ts';
import { openModel } from '../../../weights/open-model.ts';
import { eosIdsOf } from './served-model.ts';

const { model, memory, port } = workerData as GrammarThreadData & { readonly port: MessagePort };

function readVocabulary(): GrammarVocabulary {
  const files = openModel(model);
  try {
    const tokenizer = textOf(files)?.tokenizer;
    if (tokenizer === undefined) throw new Error('Cannot compile grammars: the model has no tokenizer');
    const eosIds = eosIdsOf(files, tokenizer);
    return { size: files.config.vocabSize, bytesOf: (id) => tokenizer.decodeBytes(id), eosIds };
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
