// The attention workers of an instance by its settings, and the process of one attention worker.
import { pagesFor } from '../../../core/kvcache/layer-groups.ts';
import { LinkedAttentionWorker } from '../../../engine/linked-attention-worker.ts';
import { type KvShape, kvShapeOf, type LoadedModel } from '../../../engine/load-model.ts';
import type { Backend } from '../../../kernel/backend.ts';
import { AttentionWorker } from '../../../kernel/native/attention-workers.ts';
import { NativeBackend } from '../../../kernel/native/native.ts';
import { LiveAttentionWorkers } from '../../../runtime/attention-workers/live-attention-workers.ts';
import { pageTokens } from '../../../util/step.ts';
import { openModel } from '../../../weights/open-model.ts';
import type { AttentionWorkerOptions, AttentionWorkersSettings } from '../../options/attention-worker-options.ts';
import { createBackend } from '../backend.ts';
import { defaultKvBytes } from '../kv-memory.ts';
import { locateModel } from '../model/locate-model.ts';
import { contextTokens } from '../model/served-model.ts';
import { stopSignal } from '../stop-signal.ts';
import type { InstanceSettings } from '../worker-settings.ts';

/** Time for which an instance waits at its start for workers of other processes, and between two attempts. */
const [startMs, retryMs] = [60_000, 500];

/** @throws Error if the workers cannot share the KV heads equally or do not answer, or the kernels are not compiled */
export function openAttentionWorkers(
  { attentionWorkers, threads }: InstanceSettings,
  backend: Backend,
  { kv }: LoadedModel,
  kvBytes: number,
  log: (message: string) => void,
) {
  if (attentionWorkers === undefined) return undefined;
  if (!(backend instanceof NativeBackend))
    throw new Error('Cannot use attention workers: the native kernels are not compiled');
  const workers = 'threads' in attentionWorkers ? attentionWorkers.threads : attentionWorkers.addresses.length;
  checkShards(kv, workers);
  const { linked, pages } =
    'threads' in attentionWorkers
      ? localWorkers(backend, kv, workers, threads, Math.floor(kvBytes / kv.pageBytes))
      : remoteWorkers(backend, kv, attentionWorkers, log);
  return { pages, live: new LiveAttentionWorkers(linked, log), machine: { attentionWorkers: { workers } } };
}

function checkShards({ kvHeads }: KvShape, workers: number): void {
  if (kvHeads % workers === 0) return;
  throw new Error(`Cannot use ${workers} attention workers: they cannot share ${kvHeads} KV heads equally`);
}

function localWorkers(backend: NativeBackend, kv: KvShape, workers: number, threads: number, pages: number) {
  // They compute at the same time.
  const spec = { backend, kv, workers, threads: Math.max(1, Math.floor(threads / workers)), pages };
  return { pages, linked: Array.from({ length: workers }, () => LinkedAttentionWorker.local(spec)) };
}

/** The pages of the smallest worker count: each has a shard of every page. */
function remoteWorkers(
  backend: NativeBackend,
  kv: KvShape,
  { addresses, token }: Extract<AttentionWorkersSettings, { readonly token: string }>,
  log: (message: string) => void,
) {
  const workers = addresses.length;
  const linked = addresses.map((address) => {
    const end = performance.now() + startMs;
    for (let attempt = 0; ; attempt++) {
      try {
        return LinkedAttentionWorker.remote({ backend, kv, workers, address, token });
      } catch (error) {
        if (performance.now() > end) throw error;
        if (attempt === 0) log(`Waiting for the attention worker at ${address}`);
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, retryMs);
      }
    }
  });
  return { pages: Math.min(...linked.map((worker) => worker.pages)), linked };
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
