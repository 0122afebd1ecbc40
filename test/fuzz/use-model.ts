// Uses a model's files as the commands do: opens, builds the tokenizer, loads, renders, encodes and generates, or
// reports one line.
import { contextTokens, createServedModel } from '../../src/cli/serve/model/served-model.ts';
import { Engine } from '../../src/engine/engine.ts';
import { modelFingerprint } from '../../src/engine/fingerprint.ts';
import { generateGreedy } from '../../src/engine/greedy.ts';
import { freeModel, type LoadOptions, loadModel } from '../../src/engine/load-model.ts';
import type { ServedModel } from '../../src/gateway/http/served-model.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import { pageTokens } from '../../src/util/step.ts';
import { openModel } from '../../src/weights/open-model.ts';
import type { ModelFiles } from '../../src/weights/types.ts';

const messageCharactersMax = 1500;
const promptTokens = 5;
const outputTokens = 2;
const requestedContext = 64;
const sample = 'Hello, the \u00e9l\u00e8ve 42 \u{1f600}\n\u4f60\u597d';

/** Weight type in memory and input form. */
export type Form = Pick<LoadOptions, 'weights' | 'inputs'>;

/** How far the files got: served to the end, or refused by a stage with an error line. */
export interface Outcome {
  readonly stage: 'served' | 'open' | 'text' | 'load' | 'use';
  readonly line: string | undefined;
}

/** @throws Error when the files are refused other than by one line that names them */
export function useModel(path: string, backend: Backend, form: Form): Outcome {
  let stage: Outcome['stage'] = 'open';
  try {
    const files = openModel(path);
    try {
      const context = Math.min(
        requestedContext,
        contextTokens(files, { context: undefined, kvMemory: undefined, inputs: 'bf16' }),
      );
      stage = 'text';
      const served = createServedModel(files, context, undefined);
      stage = 'load';
      const refused = runModel(files, served, context, backend, form);
      return { stage: refused === undefined ? 'served' : 'use', line: refused };
    } finally {
      files.close();
    }
  } catch (error) {
    return { stage, line: lineOf(error, path) };
  }
}

/**
 * The error line of a refusal. @throws Error if it has several lines, is too long, names no file, or is an internal
 * error
 */
function lineOf(error: unknown, path: string | undefined): string {
  if (!(error instanceof Error)) throw new Error(`a thrown value is not an error: ${String(error)}`);
  const { message } = error;
  const fail = (why: string): never => {
    throw new Error(`${why}: ${error.name}: ${message.slice(0, 500)}`, { cause: error });
  };
  if (error instanceof TypeError || error instanceof RangeError || error instanceof ReferenceError)
    fail('a bug speaks');
  if (!message.startsWith('Cannot ')) fail('not a refusal');
  if (/[\p{Cc}\u2028\u2029]/u.test(message)) fail('more than one line');
  if (message.length > messageCharactersMax) fail(`a line of ${message.length} characters`);
  if (path !== undefined && !message.includes(path)) fail('the file is not named');
  return message;
}

function runModel(
  files: ModelFiles,
  served: ServedModel,
  context: number,
  backend: Backend,
  form: Form,
): string | undefined {
  modelFingerprint(files);
  const model = loadModel({ model: files, backend, context, ...form });
  try {
    const layers = model.kv.groups.reduce((sum, group) => sum + group.layers, 0);
    const blocks = Math.ceil((promptTokens + outputTokens) / pageTokens);
    const kvBytes = blocks * layers * model.kv.pageBytes;
    const engine = new Engine({ model, backend, tokensMax: 8, logitRowsMax: 2, kvBytes });
    try {
      return useServed(served, engine);
    } finally {
      engine.close();
    }
  } finally {
    freeModel(model, backend);
  }
}

/** One request to template, tokenizer and engine. A refusal here goes to a client, so it need not name the file. */
function useServed(
  { tokenizer, chatTemplate, bosToken, eosToken, vocabSize }: ServedModel,
  engine: Engine,
): string | undefined {
  let line: string | undefined;
  const attempt = (use: () => void): void => {
    try {
      use();
    } catch (error) {
      line = lineOf(error, undefined);
    }
  };
  let text = sample;
  attempt(() => {
    const messages = [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: sample },
    ];
    text = chatTemplate?.render({ messages, bosToken, eosToken, nowMs: 0 }).slice(0, 2000) ?? sample;
  });
  let ids = [1, 2, 3];
  attempt(() => {
    const encoded = [...(tokenizer?.encode(sample) ?? []), ...(tokenizer?.encode(text, { addSpecial: false }) ?? [])];
    for (const id of encoded) {
      if (!Number.isInteger(id) || id < 0) throw new RangeError(`token id ${id}`);
      tokenizer?.tokenBytes(id);
      tokenizer?.decodeBytes(id);
    }
    ids = encoded;
  });
  const prompt = [...ids, 0, 0].filter((id) => id < vocabSize).slice(0, promptTokens);
  attempt(() => generateGreedy(engine, prompt.length === 0 ? [0] : prompt, outputTokens));
  return line;
}
