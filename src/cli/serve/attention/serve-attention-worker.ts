// The process of one attention worker. Apart from the instance's side: an instance thread loads no tokenizer and no hub.
import { pagesFor } from '../../../core/kvcache/layer-groups.ts';
import { kvShapeOf } from '../../../engine/load-model.ts';
import { AttentionWorker } from '../../../kernel/native/attention-workers.ts';
import { NativeBackend } from '../../../kernel/native/native.ts';
import { pageTokens } from '../../../util/step.ts';
import { openModel } from '../../../weights/open-model.ts';
import type { AttentionWorkerOptions } from '../../options/attention-worker-settings.ts';
import { createBackend } from '../backend.ts';
import { logRdmaDevice } from '../host/rdma-device.ts';
import { defaultKvBytes } from '../kv-memory.ts';
import { locateModel } from '../model/locate-model.ts';
import { contextTokens } from '../model/served-model.ts';
import { stopSignal } from '../stop-signal.ts';
import { checkShards } from './attention-workers.ts';

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
  logRdmaDevice(transport, console.log);
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
