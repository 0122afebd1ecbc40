// Opens a model for serving: its text side on this thread, its engine on a worker thread.

import type { Encode } from '../gateway/prompt.ts';
import type { ServedModel } from '../gateway/served-model.ts';
import { LiveCluster } from '../live/live-cluster.ts';
import { TokenizerThread } from '../live/tokenizer-thread.ts';
import { openModel } from '../weights/open-model.ts';
import { locateModel } from './locate-model.ts';
import { type InstanceOptions, type ModelOptions, oneInstance } from './options.ts';
import { contextTokens, createServedModel } from './served-model.ts';
import type { InstanceSettings } from './worker-settings.ts';

/** Longer texts are tokenised on another thread: this many take about a millisecond. */
const inlineCharacters = 8192;

export interface Serving {
  readonly model: ServedModel;
  readonly cluster: LiveCluster;
  readonly encode: Encode;
  /** Ends the instances' threads. */
  close(): Promise<void>;
}

export interface ServingOptions {
  /** Requests accepted at once. */
  readonly queue: number;
  readonly servedModelName?: string | undefined;
  /** What sets instances apart from what the model's options say of all; one unless given. */
  readonly instances?: readonly InstanceOptions[];
}

export async function openServing(options: ModelOptions, serving: ServingOptions): Promise<Serving> {
  const { queue, servedModelName, instances = [oneInstance] } = serving;
  const { path, name } = await locateModel(options.model);
  const files = openModel(path);
  try {
    const context = contextTokens(files, { ...options, kvMemory: leastKvMemory(options, instances) });
    // The workers pack weights while this thread builds the tokenizer.
    const cluster = new LiveCluster({
      entry: new URL('./instance-worker.js', import.meta.url),
      instances: instances.map((own) => ({
        role: own.role,
        settings: instanceSettings(options, own, path, context, instances.length),
      })),
      queueMax: queue,
      log: console.error,
    });
    const model = await servedOrClosed(cluster, () => createServedModel(files, context, servedModelName ?? name));
    const { tokenizer } = model;
    const thread = new TokenizerThread(new URL('./tokenizer-worker.js', import.meta.url), { model: path });
    const encode: Encode = async (text, addSpecial) => {
      if (text.length > inlineCharacters) return thread.encode(text, addSpecial);
      return Int32Array.from(tokenizer?.encode(text, { addSpecial }) ?? []);
    };
    const close = async (): Promise<void> => {
      await Promise.all([cluster.close(), thread.close()]);
    };
    return { model, cluster, encode, close };
  } finally {
    files.close();
  }
}

/** The threads of a model whose text side cannot be built must not keep the process alive. */
async function servedOrClosed(cluster: LiveCluster, create: () => ServedModel): Promise<ServedModel> {
  try {
    return create();
  } catch (error) {
    await cluster.close();
    throw error;
  }
}

/** What the smallest instance has; undefined where each takes what the context needs. */
function leastKvMemory({ kvMemory }: ModelOptions, instances: readonly InstanceOptions[]): number | undefined {
  const given = instances.flatMap((own) => own.kvMemory ?? kvMemory ?? []);
  return given.length === 0 ? undefined : Math.min(...given);
}

/** Threads that are given for all are shared out. */
function instanceSettings(
  options: ModelOptions,
  own: InstanceOptions,
  model: string,
  context: number,
  instances: number,
): InstanceSettings {
  return {
    model,
    weights: options.weights,
    inputs: options.inputs,
    threads: own.threads ?? Math.max(1, Math.floor(options.threads / instances)),
    contextTokens: context,
    kvBytes: own.kvMemory ?? options.kvMemory,
    instances,
    eviction: options.eviction,
  };
}
