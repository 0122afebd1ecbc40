// The attention workers of an instance by its settings, and the process of one attention worker.
import { setTimeout } from 'node:timers/promises';
import { pagesFor } from '../../../core/kvcache/layer-groups.ts';
import { LinkedAttentionWorker, type LocalAttentionWorkerOptions } from '../../../engine/linked-attention-worker.ts';
import { type KvShape, kvShapeOf, type LoadedModel } from '../../../engine/load-model.ts';
import type { Backend } from '../../../kernel/backend.ts';
import { AttentionWorker } from '../../../kernel/native/attention-workers.ts';
import { NativeBackend } from '../../../kernel/native/native.ts';
import { LiveAttentionWorkers } from '../../../runtime/attention-workers/live-attention-workers.ts';
import { PulledPages, type StagingPool } from '../../../runtime/attention-workers/pulled-pages.ts';
import type { Messenger } from '../../../runtime/transfer/messenger.ts';
import { pageTokens } from '../../../util/step.ts';
import { openModel } from '../../../weights/open-model.ts';
import type { AttentionWorkerAddresses, AttentionWorkerOptions } from '../../options/attention-worker-options.ts';
import { createBackend } from '../backend.ts';
import { defaultKvBytes } from '../kv-memory.ts';
import { locateModel } from '../model/locate-model.ts';
import { contextTokens } from '../model/served-model.ts';
import { stopSignal } from '../stop-signal.ts';
import type { InstanceSettings } from '../worker-settings.ts';

/**
 * Time for which an instance waits at its start for workers of other processes, between two attempts, and between two
 * looks at an attempt in progress.
 */
const [startMs, retryMs, lookMs] = [60_000, 500, 10];

/** @throws Error if the workers cannot share the KV heads equally or do not answer, or the kernels are not compiled */
export async function openAttentionWorkers(
  { attentionWorkers, threads }: InstanceSettings,
  backend: Backend,
  { kv }: LoadedModel,
  kvBytes: number,
  log: (message: string) => void,
) {
  if (attentionWorkers === undefined) return undefined;
  if (!(backend instanceof NativeBackend))
    throw new Error('Cannot use attention workers: the native kernels are not compiled');
  const workers = workersOf(attentionWorkers);
  const { partition, form } = attentionWorkers;
  const byHeads = partition === 'heads';
  if (byHeads) checkShards(kv, workers);
  const shared = { backend, kv, shards: byHeads ? workers : 1, form, links: attentionWorkers.batches };
  // Partitioned by heads, a page of the instance is a page of each worker.
  const ownPages = Math.floor(kvBytes / kv.pageBytes / (byHeads ? 1 : workers));
  const linked =
    'threads' in attentionWorkers
      ? localWorkers(shared, workers, threads, ownPages)
      : await remoteWorkers(shared, attentionWorkers, log);
  // The smallest worker counts.
  const perWorker = Math.min(...linked.map(({ pages }) => pages));
  const pages = byHeads ? perWorker : workers * perWorker;
  const machine = { attentionWorkers: { workers, partition } };
  const moveAfterS = 'addresses' in attentionWorkers ? attentionWorkers.moveAfterS : undefined;
  const moves = moveAfterS === undefined ? undefined : { afterUs: 1e6 * moveAfterS, pages };
  return { pages, linked, live: new LiveAttentionWorkers(linked, log, moves), machine };
}

function workersOf(settings: NonNullable<InstanceSettings['attentionWorkers']>): number {
  return 'threads' in settings ? settings.threads : settings.addresses.length;
}

/**
 * The default memory of an instance. Partitioned by requests, each worker of this process has as much as an instance
 * alone, since a sequence lies whole at one.
 */
export function defaultInstanceBytes(
  { attentionWorkers, instances, contextTokens }: InstanceSettings,
  kv: KvShape,
): number {
  const parts = attentionWorkers?.partition === 'requests' ? workersOf(attentionWorkers) : 1;
  return parts * defaultKvBytes(kv, contextTokens, instances * parts);
}

function checkShards({ kvHeads }: KvShape, workers: number): void {
  if (kvHeads % workers === 0) return;
  throw new Error(
    `Cannot use ${workers} attention workers: they cannot share ${kvHeads} KV heads equally: use --partition requests`,
  );
}

type SharedOptions = Pick<LocalAttentionWorkerOptions, 'backend' | 'kv' | 'shards' | 'form' | 'links'>;

function localWorkers(
  shared: SharedOptions,
  workers: number,
  threads: number,
  pages: number,
): readonly LinkedAttentionWorker[] {
  // They compute at the same time.
  const spec = { ...shared, threads: Math.max(1, Math.floor(threads / workers)), pages };
  return Array.from({ length: workers }, (_, shard) => {
    const worker = LinkedAttentionWorker.local({ ...spec, shard });
    const outcome = worker.reopen();
    if (typeof outcome === 'object') throw new Error(outcome.why);
    return worker;
  });
}

/** Waits for all of them; other work of the thread goes on meanwhile. */
function remoteWorkers(
  shared: SharedOptions,
  { addresses, token }: AttentionWorkerAddresses,
  log: (message: string) => void,
): Promise<readonly LinkedAttentionWorker[]> {
  const end = performance.now() + startMs;
  return Promise.all(
    addresses.map(async (address, index) => {
      const worker = LinkedAttentionWorker.remote({ ...shared, addresses, index, token });
      let hasLogged = false;
      for (let outcome = worker.reopen(); outcome !== 'open'; outcome = worker.reopen()) {
        if (typeof outcome === 'object') {
          if (performance.now() > end) throw new Error(outcome.why);
          if (!hasLogged) log(`Waiting for the attention worker at ${address}`);
          hasLogged = true;
        }
        await setTimeout(outcome === 'opening' ? lookMs : retryMs);
      }
      return worker;
    }),
  );
}

/** Prompts of other instances go through a staging pool here. */
export function pulledPages(
  workers: Awaited<ReturnType<typeof openAttentionWorkers>>,
  staging: StagingPool,
  messenger: Messenger,
  wake: () => void,
): Messenger {
  if (workers === undefined) return messenger;
  const pulled = new PulledPages(messenger, staging, workers.linked, wake);
  workers.live.onReplaced = (worker) => pulled.onReplaced(worker);
  return pulled;
}

/** The message of an attention worker to its parent process. */
export interface AttentionWorkerMessage {
  readonly address: string;
}

/** Serves model workers over one shard of the KV heads until SIGTERM or SIGINT. @throws Error in one line */
export async function serveAttentionWorker(options: AttentionWorkerOptions): Promise<void> {
  const { path } = await locateModel(options.model);
  const { kv, context } = shapeOf(path, options);
  const { workers, index } = options.shard;
  checkShards(kv, workers);
  const shard = { type: kv.type, kvHeads: kv.kvHeads / workers, headDim: kv.headDim };
  // The memory is that of the shard: a page here is a part of the instance's.
  const shardBytes = kv.pageBytes / workers;
  const kvBytes = options.kvMemory ?? defaultKvBytes(kv, context, 1) / workers;
  const pages = Math.floor(kvBytes / shardBytes);
  const needed = pagesFor(kv.groups, pageTokens, pageTokens);
  if (pages < needed) throw new Error(`Cannot hold a block: ${kvBytes} bytes are ${pages} pages, ${needed} are needed`);
  const backend = createBackend(options.threads);
  if (!(backend instanceof NativeBackend))
    throw new Error('Cannot start an attention worker: the native kernels are not compiled');
  const pool = backend.createKvPool({ ...shard, pages });
  const { pagesHost: host, pagesPort: port, token, transport } = options;
  const worker = new AttentionWorker({ backend, pool, host, port, token, transport });
  console.log(
    `Attention worker ${index + 1} of ${workers} at ${worker.address}: ${shard.kvHeads} of ${kv.kvHeads} KV heads, ` +
      `KV ${Math.round((pages * shardBytes) / 1e6)} MB, ${options.threads} thread${options.threads === 1 ? '' : 's'}`,
  );
  process.send?.({ address: worker.address } satisfies AttentionWorkerMessage);
  // Native threads and signal handlers do not keep the process alive.
  const alive = setInterval(() => {}, 2 ** 30);
  await stopSignal();
  clearInterval(alive);
  worker.close();
  backend.freeKvPool(pool);
  backend.close();
}

/** The shape of the KV memory; reads no weights. */
function shapeOf(path: string, options: AttentionWorkerOptions) {
  const files = openModel(path);
  try {
    // The memory is that of one shard; the context depends on that of all.
    const kvMemory = options.kvMemory && options.kvMemory * options.shard.workers;
    const context = contextTokens(files, { ...options, kvMemory });
    return { kv: kvShapeOf(files, { ...options, context }).kv, context };
  } finally {
    files.close();
  }
}
