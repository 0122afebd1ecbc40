// The attention workers of an instance by its settings.
import { setTimeout } from 'node:timers/promises';
import { LinkedAttentionWorker, type LocalAttentionWorkerOptions } from '../../../engine/linked-attention-worker.ts';
import type { KvShape, LoadedModel } from '../../../engine/load-model.ts';
import type { Backend } from '../../../kernel/backend.ts';
import { createNativeBackend, NativeBackend } from '../../../kernel/native/native.ts';
import { LiveAttentionWorkers } from '../../../runtime/attention-workers/live-attention-workers.ts';
import { PulledPages, type StagingPool } from '../../../runtime/attention-workers/pulled-pages.ts';
import type { Messenger } from '../../../runtime/transfer/messenger.ts';
import type { AttentionWorkerAddresses, AttentionWorkersSettings } from '../../options/attention-worker-settings.ts';
import { defaultKvBytes } from '../kv-memory.ts';
import type { InstanceSettings } from '../worker-settings.ts';

/**
 * Time for which an instance waits at its start for workers of other processes, between two attempts, and between two
 * polls of an attempt in progress.
 */
const [startMs, retryMs, pollMs] = [60_000, 500, 10];

interface WorkerMemory {
  /** Of workers in this process. */
  readonly kvBytes: number;
  /** Pages for prompts of prefill instances, of all caches; 0: there are none. */
  readonly receivePages: number;
}

/** @throws Error if the workers cannot share the KV heads equally or do not answer, or the kernels are not compiled */
export async function openAttentionWorkers(
  { attentionWorkers, threads }: Pick<InstanceSettings, 'attentionWorkers' | 'threads'>,
  backend: Backend,
  { kv }: LoadedModel,
  { kvBytes, receivePages }: WorkerMemory,
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
      ? localWorkers(shared, workers, attentionWorkers.attentionThreads ?? threads, ownPages)
      : await remoteWorkers({ ...shared, pulls: receivePages > 0 }, attentionWorkers, log);
  // The smallest worker counts.
  const perWorker = Math.min(...linked.map(({ pages }) => pages));
  const pages = byHeads ? perWorker : workers * perWorker;
  if (pages <= receivePages)
    throw new Error(
      `Cannot decode prompts of prefill instances: ${receivePages} pages receive them, and attention workers have ${pages}`,
    );
  const machine = { attentionWorkers: { workers, partition } };
  const moveAfterS = 'addresses' in attentionWorkers ? attentionWorkers.moveAfterS : undefined;
  const moves = moveAfterS === undefined ? undefined : { afterUs: 1e6 * moveAfterS, pages };
  const live = new LiveAttentionWorkers(linked, log, moves, attentionWorkers.modelWorkers);
  const pagesPerWorker = byHeads ? undefined : perWorker;
  return {
    pages,
    pagesPerWorker,
    linked,
    live,
    machine,
    replicas: openReplicas(backend, attentionWorkers.modelWorkers),
  };
}

/** Model replicas beside the first: threads, without weights of their own. */
function openReplicas({ isa, threads }: NativeBackend, modelWorkers: number): readonly NativeBackend[] {
  return Array.from({ length: modelWorkers - 1 }, () => createNativeBackend({ threads, isa }));
}

/** Threads of each model replica. */
export function replicaThreads({ attentionWorkers, threads }: InstanceSettings): number {
  if (attentionWorkers === undefined) return threads;
  const { modelWorkers, attentionThreads = 0 } = attentionWorkers;
  return Math.max(1, Math.floor((threads - attentionThreads) / modelWorkers));
}

function workersOf(settings: NonNullable<InstanceSettings['attentionWorkers']>): number {
  return 'threads' in settings ? settings.threads : settings.addresses.length;
}

/** Partitioned by requests, each worker has a cache, and receive pages, of its own. */
export function cacheParts(settings: InstanceSettings['attentionWorkers']): number {
  return settings?.partition === 'requests' ? workersOf(settings) : 1;
}

/**
 * The default memory of an instance. Partitioned by requests, each worker of this process has as much as an instance
 * alone, since a sequence lies whole at one.
 */
export function defaultInstanceBytes(
  { attentionWorkers, instances, contextTokens }: InstanceSettings,
  kv: KvShape,
): number {
  const parts = cacheParts(attentionWorkers);
  return parts * defaultKvBytes(kv, contextTokens, instances * parts);
}

/** @throws Error if the workers cannot share the KV heads equally */
export function checkShards({ kvHeads }: KvShape, workers: number): void {
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

/**
 * Waits for all of them, in their order; other work of the thread goes on meanwhile. If one serves another process, the
 * earlier ones are given up until the next attempt: of two processes that wait for the same workers, one gets all.
 */
async function remoteWorkers(
  shared: SharedOptions & { readonly pulls: boolean },
  { addresses, token, transport, waits = false }: Extract<AttentionWorkersSettings, AttentionWorkerAddresses>,
  log: (message: string) => void,
): Promise<readonly LinkedAttentionWorker[]> {
  const end = waits ? Number.POSITIVE_INFINITY : performance.now() + startMs;
  const spec = { ...shared, addresses, token, transport };
  const workers = addresses.map((_, index) => LinkedAttentionWorker.remote({ ...spec, index }));
  let logged = '';
  for (let why = await openAll(workers); why !== undefined; why = await openAll(workers)) {
    if (performance.now() > end) throw new Error(why);
    if (why !== logged) log(`Waiting for attention workers: ${why}`);
    logged = why;
    await setTimeout(retryMs);
  }
  return workers;
}

/** @returns undefined if all are open, else the reason, and none is */
async function openAll(workers: readonly LinkedAttentionWorker[]): Promise<string | undefined> {
  for (const worker of workers) {
    let outcome = worker.reopen();
    for (; outcome === 'opening'; outcome = worker.reopen()) await setTimeout(pollMs);
    if (outcome === 'open') continue;
    for (const open of workers) open.close();
    return outcome.why;
  }
  return undefined;
}

/** Prompts of other instances go through a staging pool here. */
export function pulledPages(
  workers: Awaited<ReturnType<typeof openAttentionWorkers>>,
  staging: StagingPool,
  messenger: Messenger,
  wake: () => void,
): Messenger {
  if (workers === undefined) return messenger;
  const pulled = new PulledPages(messenger, staging, workers.linked, wake, workers.pagesPerWorker);
  workers.live.onReplaced = (worker) => pulled.onReplaced(worker);
  return pulled;
}
