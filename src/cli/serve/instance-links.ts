// Connects the thread of an instance to other instances: messages over the bus, pages over the transport.
import { blockPages } from '../../core/kvcache/layer-groups.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import { batchLimits } from '../../core/scheduler/executor/token-limits.ts';
import type { KvShape } from '../../engine/load-model.ts';
import type { LayerRef } from '../../graph/program.ts';
import type { Backend, KvPoolHandle } from '../../kernel/backend.ts';
import { loadNative } from '../../kernel/native/addon.ts';
import { NativeMessenger } from '../../kernel/native/messenger.ts';
import { NativeRemoteMessenger } from '../../kernel/native/remote-messenger.ts';
import type { LenderRoutes } from '../../runtime/lending/lending-wire.ts';
import type { ActivationWire } from '../../runtime/pipeline/activation-memory.ts';
import { ActivationTransfer } from '../../runtime/pipeline/activation-transfer.ts';
import { publishTo, type ThreadEndpoint } from '../../runtime/threads/thread-bus.ts';
import type { InstanceThreadData } from '../../runtime/threads/thread-protocol.ts';
import { LiveHandOffs } from '../../runtime/transfer/live-hand-offs.ts';
import type { Messenger, PagesAddress } from '../../runtime/transfer/messenger.ts';
import { pageTokens } from '../../util/step.ts';
import type { InstanceSettings } from './worker-settings.ts';

/** Head count that gives activation pages of 64 KiB. */
const rowHeads = 4;
const rowDim = 64;

/** The page pool and its layers. */
interface PagedMemory {
  readonly pool: KvPoolHandle;
  readonly kv: KvShape;
  readonly layers: readonly LayerRef[];
}

/**
 * KV bytes of a token in a prefix transfer. Undefined without transfers: of a model with windows only host memory has
 * complete prefixes.
 */
export function fetchBytesPerToken({ groups, pageBytes }: KvShape, hasTiers: boolean): number | undefined {
  if (hasWindows({ groups }) && !hasTiers) return undefined;
  return (blockPages(groups) * pageBytes) / pageTokens;
}

export function hasWindows({ groups }: Pick<KvShape, 'groups'>): boolean {
  return groups.some(({ window }) => window !== undefined);
}

/** Undefined if the instance neither sends nor receives prompts. @param over replaces the messenger by one over it */
export function createHandOffs(
  { peers, pages, settings }: InstanceThreadData<InstanceSettings>,
  { bus, address }: ThreadEndpoint,
  memory: PagedMemory,
  wake: () => void,
  over: (messenger: Messenger) => Messenger = (messenger) => messenger,
): LiveHandOffs | undefined {
  if (peers === 'none') return undefined;
  const { pool, kv, layers } = memory;
  const messenger = over(
    createMessenger(settings.lending === undefined ? pages : pagesBesideLending(pages), pool, wake),
  );
  return new LiveHandOffs({
    ...{ messenger, shape: { groups: kv.groups, layers }, pageBytes: kv.pageBytes },
    post: (to, wire) => publishTo(bus, 'peer', [to, address], wire),
  });
}

/** Buffers of one chunk of activations each. */
const sendBuffers = 4;
const receiveBuffers = 8;

/** Activations sent to and received from other members of pipeline groups. */
export function createActivationTransfer(
  { pages }: InstanceThreadData<InstanceSettings>,
  { backend, columns }: { readonly backend: Backend; readonly columns: number },
  post: (to: InstanceIndex, wire: ActivationWire) => void,
  wake: () => void,
): ActivationTransfer {
  const { port = 0 } = pages ?? {};
  const pageValues = 2 * rowHeads * pageTokens * rowDim;
  const chunkPages = Math.ceil((batchLimits.tokensMax * columns) / pageValues);
  const count = (sendBuffers + receiveBuffers) * chunkPages;
  const pool = backend.createKvPool({ pages: count, kvHeads: rowHeads, headDim: rowDim, type: 'f32' });
  const messenger = createMessenger(pages && { ...pages, port: port === 0 ? 0 : port + 1 }, pool, wake);
  const write = (pages: Int32Array, rows: Float32Array): void => loadNative()?.writeRows(pool, pages, rows);
  return new ActivationTransfer(
    { pool, sendBuffers, receiveBuffers, chunkPages, pageValues, rowValues: columns, write },
    messenger,
    post,
  );
}

/** With a given port, lending uses that port and the next one. */
function pagesBesideLending(pages: PagesAddress | undefined): PagesAddress | undefined {
  const { port = 0 } = pages ?? {};
  return pages && { ...pages, port: port === 0 ? 0 : port + 2 };
}

/** Connections for lending; undefined without lending. */
export function lenderRoutes(
  instance: InstanceIndex | undefined,
  { bus, address }: ThreadEndpoint,
): LenderRoutes | undefined {
  if (instance === undefined) return undefined;
  return {
    instance,
    send: (to, wire) => publishTo(bus, 'lending', [to, address], wire),
    sendToManager: (envelope) => publishTo(bus, 'manager', [address], envelope),
    announceServer: (server) => publishTo(bus, 'attentionServer', [address], server),
  };
}

export function createMessenger(pages: PagesAddress | undefined, pool: KvPoolHandle, wake: () => void): Messenger {
  return pages === undefined ? new NativeMessenger(pool, wake) : new NativeRemoteMessenger(pool, pages, wake);
}

/** Sends a log line to the thread that started this one. */
export function createThreadLog({ bus, address, incarnation }: ThreadEndpoint): (message: string) => void {
  return (message) => publishTo(bus, 'output', [address, incarnation], { kind: 'log', message });
}
