// How an instance's thread reaches others: over ports or its own process, pages through the messenger.
import type { MessagePort } from 'node:worker_threads';
import type { InstanceIndex } from '../cluster/messages.ts';
import { batchLimits } from '../cluster/token-limits.ts';
import type { KvShape } from '../engine/load-model.ts';
import type { LayerRef } from '../graph/program.ts';
import type { Backend, KvPoolHandle } from '../kernel/backend.ts';
import { NativeFarMessenger } from '../kernel/native-far-messenger.ts';
import { NativeMessenger } from '../kernel/native-messenger.ts';
import { loadNative } from '../kernel/native-module.ts';
import { LiveHandOffs, type PeerWays } from '../live/live-hand-offs.ts';
import { LiveRows } from '../live/live-rows.ts';
import type { Messenger, PagesPlace } from '../live/messenger.ts';
import type { FromInstance, InstanceThreadData } from '../live/protocol.ts';
import type { RowsWire } from '../live/row-memory.ts';
import { pageTokens } from '../util/step.ts';
import type { InstanceSettings } from './worker-settings.ts';

/** Pages of rows are as long as if they were keys and values of so many heads: 64 KiB each. */
const rowHeads = 4;
const rowDim = 64;

/** Pages, and which layers they are of. */
interface PagedMemory {
  readonly pool: KvPoolHandle;
  readonly kv: KvShape;
  readonly layers: readonly LayerRef[];
}

/** Of what moves where a prefix is fetched; undefined where none can be: layers that keep a window alone are not moved. */
export function fetchBytesPerToken({ groups, pageBytes }: KvShape): number | undefined {
  const [group, ...others] = groups;
  if (group === undefined || group.window !== undefined || others.length > 0) return undefined;
  return (group.layers * pageBytes) / pageTokens;
}

/** Undefined where there is nobody to hand prompts to, or to take them from. */
export function createHandOffs(
  { peers, pages, settings }: InstanceThreadData<InstanceSettings>,
  own: MessagePort,
  memory: PagedMemory,
  wake: () => void,
): LiveHandOffs | undefined {
  const ways = waysTo(peers, own);
  if (ways === undefined) return undefined;
  const { pool, kv, layers } = memory;
  const messenger = createMessenger(settings.lending === undefined ? pages : besideLending(pages), pool, wake);
  return new LiveHandOffs({ peers: ways, messenger, shape: { groups: kv.groups, layers }, pageBytes: kv.pageBytes });
}

/** Chunks that have room where rows leave, and where they come: of two members, those that may come unasked, and some for all. */
const roomsOut = 4;
const roomsIn = 8;

/** Rows that go to other members of groups, and come from them. */
export function createRows(
  { pages }: InstanceThreadData<InstanceSettings>,
  { backend, columns }: { readonly backend: Backend; readonly columns: number },
  post: (to: InstanceIndex, wire: RowsWire) => void,
  wake: () => void,
): LiveRows {
  const { port = 0 } = pages ?? {};
  const pageValues = 2 * rowHeads * pageTokens * rowDim;
  const chunkPages = Math.ceil((batchLimits.tokensMax * columns) / pageValues);
  const count = (roomsOut + roomsIn) * chunkPages;
  const pool = backend.createKvPool({ pages: count, kvHeads: rowHeads, headDim: rowDim, type: 'f32' });
  const messenger = createMessenger(pages && { ...pages, port: port === 0 ? 0 : port + 1 }, pool, wake);
  const write = (pages: Int32Array, rows: Float32Array): void => loadNative()?.writeRows(pool, pages, rows);
  return new LiveRows({ pool, roomsOut, roomsIn, chunkPages, pageValues, columns, write }, messenger, post);
}

/** Of a port that is given, what is lent has that one and the next. */
function besideLending(pages: PagesPlace | undefined): PagesPlace | undefined {
  const { port = 0 } = pages ?? {};
  return pages && { ...pages, port: port === 0 ? 0 : port + 2 };
}

/** Undefined where there are none. */
function waysTo(peers: InstanceThreadData<unknown>['peers'], own: MessagePort): PeerWays | undefined {
  if (peers === 'others')
    return { ports: [], post: (to, wire) => own.postMessage({ kind: 'toPeer', to, wire } satisfies FromInstance) };
  if (peers.every((port) => port === undefined)) return undefined;
  const ports = [...peers];
  return { ports, post: (to, wire) => ports[to]?.postMessage(wire) };
}

export function createMessenger(pages: PagesPlace | undefined, pool: KvPoolHandle, wake: () => void): Messenger {
  return pages === undefined ? new NativeMessenger(pool, wake) : new NativeFarMessenger(pool, pages, wake);
}

/** Lines for the log of whoever started the thread. */
export function logOver(port: MessagePort): (message: string) => void {
  return (message) => port.postMessage({ kind: 'log', message } satisfies FromInstance);
}
