// Opens a model for serving: its text side on this thread, its engine on a worker thread.

import type { Encode } from '../gateway/prompt.ts';
import type { ServedModel } from '../gateway/served-model.ts';
import { TokenizerThread } from '../live/tokenizer-thread.ts';
import { WorkerInstance } from '../live/worker-instance.ts';
import { openModel } from '../weights/open-model.ts';
import { locateModel } from './locate-model.ts';
import type { ModelOptions } from './options.ts';
import { contextTokens, createServedModel } from './served-model.ts';
import type { InstanceSettings } from './worker-settings.ts';

/** Longer texts are tokenised on another thread: this many take about a millisecond. */
const inlineCharacters = 8192;

export interface Serving {
  readonly model: ServedModel;
  readonly instance: WorkerInstance;
  readonly encode: Encode;
  /** Ends the instance's thread. */
  close(): Promise<void>;
}

/** @param queue requests accepted at once */
export async function openServing(
  options: ModelOptions,
  { queue, servedModelName }: { queue: number; servedModelName?: string | undefined },
): Promise<Serving> {
  const { path, name } = await locateModel(options.model);
  const files = openModel(path);
  try {
    const context = contextTokens(files, options);
    const settings: InstanceSettings = {
      model: path,
      weights: options.weights,
      inputs: options.inputs,
      threads: options.threads,
      contextTokens: context,
      kvBytes: options.kvMemory,
      eviction: options.eviction,
    };
    // The worker packs weights while this thread builds the tokenizer.
    const instance = new WorkerInstance({
      entry: new URL('./instance-worker.js', import.meta.url),
      settings,
      queueMax: queue,
      log: console.error,
    });
    const model = await servedOrClosed(instance, () => createServedModel(files, context, servedModelName ?? name));
    const { tokenizer } = model;
    const thread = new TokenizerThread(new URL('./tokenizer-worker.js', import.meta.url), { model: path });
    const encode: Encode = async (text, addSpecial) => {
      if (text.length > inlineCharacters) return thread.encode(text, addSpecial);
      return Int32Array.from(tokenizer?.encode(text, { addSpecial }) ?? []);
    };
    const close = async (): Promise<void> => {
      await Promise.all([instance.close(), thread.close()]);
    };
    return { model, instance, encode, close };
  } finally {
    files.close();
  }
}

/** The thread of a model whose text side cannot be built must not keep the process alive. */
async function servedOrClosed(instance: WorkerInstance, create: () => ServedModel): Promise<ServedModel> {
  try {
    return create();
  } catch (error) {
    await instance.close();
    throw error;
  }
}
