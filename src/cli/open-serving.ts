// Opens a model for serving: its text side on this thread, its engine on a worker thread.

import type { Encode } from '../gateway/prompt.ts';
import type { ServedModel } from '../gateway/served-model.ts';
import { WorkerInstance } from '../live/worker-instance.ts';
import { openModel } from '../weights/open-model.ts';
import type { ModelOptions } from './options.ts';
import { embeddedModel } from './package-root.ts';
import { contextTokens, createServedModel } from './served-model.ts';
import type { InstanceSettings } from './worker-settings.ts';

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
  const path = options.model ?? embeddedModel;
  const files = openModel(path);
  try {
    const context = contextTokens(files, options.context);
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
    const model = createServedModel(files, context, servedModelName);
    const { tokenizer } = model;
    const encode: Encode = async (text, addSpecial) => Int32Array.from(tokenizer?.encode(text, { addSpecial }) ?? []);
    return { model, instance, encode, close: () => instance.close() };
  } finally {
    files.close();
  }
}
