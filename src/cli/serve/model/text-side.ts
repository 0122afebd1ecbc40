// The text side of a model for a gateway: its description, and tokenization that does not block the thread for long texts.

import type { GrammarCompiler } from '../../../core/protocol/grammar.ts';
import type { ServedModel } from '../../../gateway/http/served-model.ts';
import type { Encode } from '../../../gateway/openai/prompt.ts';
import { ThreadCompiler } from '../../../runtime/grammars/thread-compiler.ts';
import { TokenizerPool } from '../../../runtime/tokenizer/tokenizer-pool.ts';
import type { ModelFiles } from '../../../weights/types.ts';
import { availableThreads } from '../host/cgroup.ts';
import { configurationNotes } from './model-facts.ts';
import { createServedModel, type ServedTasks } from './served-model.ts';

/** Longer texts are tokenized on another thread; this length takes about a millisecond. */
const inlineCharacters = 8192;
/** A long text of one client leaves a thread for the others. */
const tokenizerThreadsMax = 2;

/** Module of grammar threads. */
export const grammarWorker = new URL('./grammar-worker.js', import.meta.url);

export interface TextSide {
  readonly model: ServedModel;
  readonly encode: Encode;
  /** Undefined: no grammar can constrain the output. */
  readonly grammars: GrammarCompiler | undefined;
  /** What the start-up lines say about the model's configuration. */
  readonly notes: readonly string[];
  /** Reads the vocabulary of grammars, so that the first request with one does not wait for it. */
  warmUp(): void;
  close(): Promise<void>;
}

/** Closes `cluster` if the text side fails, since its threads and connections would keep the process alive. */
export async function openTextOrClose(cluster: { close(): Promise<void> }, open: () => TextSide): Promise<TextSide> {
  try {
    return open();
  } catch (error) {
    await cluster.close();
    throw error;
  }
}

/** @param files may be closed afterwards @param path of the files @param name model id for clients, if it is not that of the files */
export function openTextSide(
  files: ModelFiles,
  path: string,
  context: number,
  name: string | undefined,
  tasks: ServedTasks = 'all',
): TextSide {
  const model = createServedModel(files, context, name, tasks);
  const { tokenizer } = model;
  const pool = new TokenizerPool({
    entry: new URL('./tokenizer-worker.js', import.meta.url),
    settings: { model: path },
    threadsMax: Math.min(tokenizerThreadsMax, availableThreads()),
  });
  const encode: Encode = async (text, addSpecial, request) => {
    if (text.length > inlineCharacters) return pool.encode(text, addSpecial, request);
    return Int32Array.from(tokenizer?.encode(text, { addSpecial }) ?? []);
  };
  const grammars = new ThreadCompiler(grammarWorker, path);
  const warmUp = (): void => {
    if (tokenizer !== undefined && model.generates !== false) grammars.warmUp();
  };
  const close = async (): Promise<void> => {
    await Promise.all([pool.close(), grammars.close()]);
  };
  return { model, encode, grammars, notes: configurationNotes(files.config, context), warmUp, close };
}
