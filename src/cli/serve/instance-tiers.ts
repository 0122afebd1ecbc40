// The tiers below the KV pool of an instance: their capacities, and opening the SSD store.
import { createHash } from 'node:crypto';
import { dirname, join } from 'node:path';
import type { TokenInstanceConfig } from '../../core/instance/token-instance.ts';
import { blockPages } from '../../core/kvcache/layer-groups.ts';
import type { KvShape } from '../../engine/load-model.ts';
import type { LayerRef } from '../../graph/program.ts';
import type { KvPoolHandle } from '../../kernel/backend.ts';
import { loadNative, type NativeModule } from '../../kernel/native/addon.ts';
import { NativeBlockStore } from '../../kernel/native/block-store.ts';
import { LiveTiers, type PageLoader } from '../../runtime/threads/live-tiers.ts';
import type { BlockRoot, InstanceDescription } from '../../runtime/threads/thread-protocol.ts';
import { type KvType, kvTokenBytes } from '../../util/kv-type.ts';
import type { ModelConfig } from '../../util/model-config.ts';
import { pageTokens } from '../../util/step.ts';
import { lentBytes } from '../options/lending-rules.ts';
import { UsageError } from '../usage-error.ts';
import { makeFolder } from './host/make-folder.ts';
import type { InstanceSettings } from './worker-settings.ts';

export interface TierOptions {
  /** Per instance. */
  readonly hostMemory?: number | undefined;
  /** Share of host memory for blocks of sequences; 0 by default. */
  readonly lendHost?: number | undefined;
  /** The folder of blocks on SSD, and its capacity for all instances together. */
  readonly ssd?: string | undefined;
  readonly ssdSize?: number | undefined;
}

const ssdSizeDefault = 10 * 2 ** 30;
const ssdSizeMin = 64 * 2 ** 20;
/** Whole contexts of the model that SSD holds by default. */
const ssdContexts = 64;

/** The default of --ssd-size: the KV of 64 contexts, between 64 MiB and 10 GiB. */
export function ssdSizeFor(config: ModelConfig, context: number, kvType: KvType): number {
  const tokenBytes = config.layers * kvTokenBytes(config, kvType);
  return Math.min(ssdSizeDefault, Math.max(ssdSizeMin, ssdContexts * context * tokenBytes));
}

/** Tier settings of one instance. Instances divide the SSD capacity, except those with a folder of their `own`. @throws UsageError */
export function tierSettings(
  options: TierOptions,
  index: number,
  instances: number,
  own: TierOptions & { readonly role?: string } = {},
): InstanceSettings['tiers'] {
  const lendHost = own.role === 'store' ? 0 : options.lendHost;
  if (own.ssd !== undefined) return tierSettings({ ...options, ...own, lendHost, ssdSize: own.ssdSize }, 0, 1);
  const { ssd, ssdSize } = options;
  const hostMemory = own.hostMemory ?? options.hostMemory;
  if ((ssdSize ?? own.ssdSize) !== undefined && ssd === undefined)
    throw new UsageError('Cannot use --ssd-size: it needs --ssd');
  const hostBytes = hostMemory && hostMemory - lentBytes({ hostMemory, lendHost });
  const isCached = (hostBytes ?? 0) > 0;
  if (!isCached && ssd === undefined) return undefined;
  const bytes = own.ssdSize ?? Math.floor((ssdSize ?? ssdSizeDefault) / instances);
  return {
    hostBytes: isCached ? hostBytes : undefined,
    ssd: ssd === undefined ? undefined : { path: join(ssd, `instance-${index}`), bytes },
  };
}

/** @throws UsageError if two instances would use the same folder */
export function refuseSharedFolders(
  options: TierOptions,
  instances: readonly (TierOptions & { role: string })[],
): void {
  const paths = instances.flatMap((own, i) => tierSettings(options, i, instances.length, own)?.ssd?.path ?? []);
  const twice = paths.find((path, i) => paths.indexOf(path) < i);
  if (twice !== undefined) throw new UsageError(`Cannot use --ssd: two instances would use ${twice}`);
}

export interface TierSizes {
  readonly hostBlocks: number;
  readonly ssdBlocks: number;
  /** Pages of host memory, which follow those of the pool, with one block more for data that is not kept. */
  readonly pages: number;
}

/** Host memory of an instance with an SSD tier alone: blocks from SSD pass through it. */
const hostContexts = 2;
const hostBlocksMin = 64;

/** Undefined without tiers. @throws Error in one line if the model or the machine does not support them */
export function tierSizes(settings: InstanceSettings, { groups, pageBytes }: KvShape): TierSizes | undefined {
  const { tiers, contextTokens } = settings;
  if (tiers === undefined) return undefined;
  const blockBytes = blockPages(groups) * pageBytes;
  const transitBlocks = Math.max(hostBlocksMin, hostContexts * Math.ceil(contextTokens / pageTokens));
  const hostBlocks = tiers.hostBytes === undefined ? transitBlocks : Math.floor(tiers.hostBytes / blockBytes);
  const ssdBlocks = Math.floor((tiers.ssd?.bytes ?? 0) / blockBytes);
  if (hostBlocks === 0)
    throw new Error(`Cannot use --host-memory ${tiers.hostBytes}: one block has ${blockBytes} bytes`);
  if (tiers.ssd !== undefined && ssdBlocks === 0)
    throw new Error(`Cannot use --ssd-size: an instance has ${tiers.ssd.bytes} bytes of it, one block ${blockBytes}`);
  return { hostBlocks, ssdBlocks, pages: (hostBlocks + 1) * blockPages(groups) };
}

export interface OpenedTiers {
  readonly live: LiveTiers;
  /** The tier settings of the scheduler. */
  readonly machine: Pick<TokenInstanceConfig, 'tiers' | 'contents'>;
  readonly description: InstanceDescription['tiers'];
}

const wordsPerFoundBlock = 6;

interface TierContext {
  readonly sizes: TierSizes;
  readonly kv: KvShape;
  /** In the order of computation. */
  readonly layers: readonly LayerRef[];
  readonly pool: KvPoolHandle;
  readonly isa: string;
  readonly root: BlockRoot;
  readonly hashKey: Uint32Array;
  readonly log: (message: string) => void;
}

/** @param wake called after a read or write has completed @throws Error in one line */
export function openTiers(
  ssd: { readonly path: string } | undefined,
  place: TierContext,
  wake: () => void,
): OpenedTiers {
  const { sizes, kv, pool, layers, log } = place;
  const native = loadNative();
  if (native === undefined)
    throw new Error('Cannot keep blocks in host memory or on SSD: the native kernels are not compiled');
  const store = ssd && openStore(ssd.path, place, wake);
  if (store !== undefined && store.note !== '') log(store.note);
  const live = new LiveTiers({
    copy: (from, to) => native.copyPages(pool, from, to),
    loader: createLoader(native, pool, placesOf(kv, layers)),
    pageBytes: kv.pageBytes,
    blockBytes: blockPages(kv.groups) * kv.pageBytes,
    store,
    log,
  });
  const onSsd = store?.found ?? new Uint32Array(0);
  const { hostBlocks, ssdBlocks, pages } = sizes;
  const description = {
    ...{ hostBlocks, ssdBlocks },
    blockBytes: (pages / (hostBlocks + 1)) * kv.pageBytes,
    found: onSsd.length / wordsPerFoundBlock,
  };
  return { live, machine: { tiers: { hostBlocks, ssdBlocks }, contents: { onSsd } }, description };
}

/** Places of the layers in a block, which has the pages of one layer group after another, in the order of computation. */
function placesOf({ groups }: KvShape, layers: readonly LayerRef[]): readonly number[] {
  return layers.map(({ group, index }) => blockPages(groups.slice(0, group)) + index);
}

/** A running step waits for the layers in the order of computation. */
function createLoader(native: NativeModule, pool: KvPoolHandle, places: readonly number[]): PageLoader {
  const loader = native.createLoader(pool);
  const inOrder = (pages: Int32Array): Int32Array =>
    pages.map((_, i) => pages[i - (i % places.length) + places[i % places.length]]);
  const isInOrder = places.every((place, layer) => place === layer);
  const ordered = isInOrder ? (pages: Int32Array) => pages : inOrder;
  return {
    begin: (from, to) => native.beginLoading(loader, places.length, ordered(from), ordered(to)),
    finish: () => native.finishLoading(loader),
    beginStoring: (from, to) => native.beginStoring(loader, places.length, ordered(from), ordered(to)),
    finishStoring: () => native.finishStoring(loader),
    get storedEarly() {
      return native.pagesStoredEarly(loader);
    },
  };
}

function openStore(path: string, { sizes, kv, pool, ...of }: TierContext, wake: () => void): NativeBlockStore {
  makeFolder(dirname(path), 'blocks');
  const identity = identityOf(kv, of);
  return new NativeBlockStore(
    { pool, pagesOfBlock: blockPages(kv.groups), path, slots: sizes.ssdBlocks, identity },
    wake,
  );
}

/** A fingerprint of all inputs of the bits and ids of a block. Instruction sets round differently. */
function identityOf(
  { groups, kvHeads, headDim, type }: KvShape,
  { isa, root, hashKey, layers }: Pick<TierContext, 'isa' | 'root' | 'hashKey' | 'layers'>,
): Uint8Array {
  const order = groups.length > 1 ? { layers } : {};
  const shape = { groups, kvHeads, headDim, type, pageTokens, isa, root, key: [...hashKey], ...order };
  return createHash('sha256').update(JSON.stringify(shape)).digest();
}
