// Engines of the library for tests: over a scripted port, and over the embedded model from the bundle.
import { Engine } from '../../src/library/engine.ts';
import type * as Library from '../../src/library/index.ts';
import { Llm } from '../../src/library/llm.ts';
import { ChatTemplate } from '../../src/text/template/chat-template.ts';
import { decodeUtf8 } from '../../src/text/utf8.ts';
import { bytesOf, byteTokenizer } from '../gateway/openai/byte-tokenizer.ts';
import { accepted, finished, ScriptedPort, started, tokens } from '../gateway/scripted-port.ts';
import { gatewayOptions } from '../gateway/world.ts';
import { toolTemplates } from '../text/tools/templates.ts';

/** An engine whose model answers a prompt with the text that `answer` gives, two bytes at once. */
export function scripted(answer: (prompt: string) => string, reason: 'stop' | 'length' = 'stop') {
  const port = new ScriptedPort(({ prompt }) => {
    const ids = bytesOf(answer(decodeUtf8(Uint8Array.from(prompt))));
    const pairs = Array.from({ length: Math.ceil(ids.length / 2) }, (_, i) => ids.slice(2 * i, 2 * i + 2));
    return [accepted, started(1), ...pairs.map((pair) => tokens(pair)), finished(reason)];
  });
  const { model } = gatewayOptions(port);
  const engine = new Engine(
    {
      model: { ...model, contextTokens: 100_000, chatTemplate: new ChatTemplate(toolTemplates.hermes) },
      cluster: port,
      encode: async (text) => Int32Array.from(byteTokenizer.encode(text)),
      grammars: { compile: async () => undefined },
      close: async () => {},
    },
    8,
  );
  return { llm: new Llm(engine), port };
}

/** The library as users import it: threads start from compiled modules alone. */
export const bundled = async (): Promise<typeof Library> =>
  (await import(new URL('../../bundle/library/index.js', import.meta.url).href)) as typeof Library;
