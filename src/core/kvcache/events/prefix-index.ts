// Which blocks of a prompt each instance of a cluster holds, built from KV events and read before each placement.
import { digestWords } from '../../../util/blake2s.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import { blockChange, type KvEventBatch, type KvSnapshot } from '../../protocol/kv-events.ts';
import { type ReplicaState, ReplicaTable, type Replication } from './replica-table.ts';

export interface PrefixIndexConfig {
  readonly instances: number;
  /** Initial capacity in distinct blocks; the index grows beyond it. */
  readonly blocks: number;
  /** Number of evicted blocks that the index also keeps, to distinguish evicted blocks from new ones. */
  readonly remembered: number;
  /** Receives every change of the index. */
  readonly listener?: HeldBlocksListener | undefined;
}

/** Where an instance holds a block: not at all, in device or host memory, or on SSD alone. */
export const heldIn = { nothing: 0, memory: 1, ssd: 2 } as const;
export type HeldIn = (typeof heldIn)[keyof typeof heldIn];

/** Receives the best place where any instance holds a block, after each change; a place may be repeated. */
export interface HeldBlocksListener {
  /** The digest is at `words[at..at+4]`. */
  changed(words: Uint32Array, at: number, held: HeldIn): void;
}

/** `stale`: late or duplicate, nothing changed. `gap`: batches are missing, nothing changed; a snapshot is required. */
export type BatchVerdict = 'applied' | 'stale' | 'gap';

/** Batches after which a missing snapshot is requested again. */
const requestAgainAfter = 64;

/** The result of a lookup: the longest prefix of a chain on each instance. Reused for the next lookup. */
export class PrefixMatches {
  /** (instances): blocks of the chain that each instance holds from the start, without a gap. */
  readonly blocks: Int32Array;
  /** The first `count` entries: instances that hold at least the first block, in no order. */
  readonly instances: Int32Array;
  /** Instances that still match, during a lookup. */
  readonly remaining: Int32Array;
  /** (instances): number of these blocks, at their end, that only SSD holds. */
  readonly onSsd: Int32Array;
  count = 0;

  constructor(instances: number) {
    this.blocks = new Int32Array(instances);
    this.onSsd = new Int32Array(instances);
    this.instances = new Int32Array(instances);
    this.remaining = new Int32Array(instances);
  }

  clear(): void {
    for (let i = 0; i < this.count; i++) {
      this.blocks[this.instances[i]] = 0;
      this.onSsd[this.instances[i]] = 0;
    }
    this.count = 0;
  }
}

/**
 * Contains the blocks that instances have reported. An instance may have evicted some since: its own cache is exact.
 */
export class PrefixIndex {
  readonly #table: ReplicaTable;
  /** Blocks that are only on SSD at their instance. */
  readonly #ssdOnly: ReplicaTable;
  readonly #incarnation: Float64Array;
  /** (instances): number of the last applied batch. */
  readonly #number: Float64Array;
  /** (instances): batches received while a snapshot is missing; 0: none is missing. */
  readonly #missed: Int32Array;

  constructor({ instances, blocks, remembered, listener }: PrefixIndexConfig) {
    const onChange =
      listener && ((words: Uint32Array, at: number) => listener.changed(words, at, this.#heldIn(words, at)));
    this.#table = new ReplicaTable(instances, blocks, remembered, onChange);
    this.#ssdOnly = new ReplicaTable(instances, 0, 0, onChange);
    this.#incarnation = new Float64Array(instances);
    this.#number = new Float64Array(instances);
    this.#missed = new Int32Array(instances);
  }

  /** Distinct blocks that instances hold. */
  get blocks(): number {
    return this.#table.blocks;
  }

  /** Number of copies of the blocks. Scans the whole index. */
  replication(): Replication {
    return this.#table.replication();
  }

  /** Blocks that an instance holds. */
  blocksOf(instance: number): number {
    return this.#table.held[instance];
  }

  apply(instance: number, batch: KvEventBatch): BatchVerdict {
    const { incarnation, number, changes, words, stored } = batch;
    if (incarnation > this.#incarnation[instance]) this.#begin(instance, incarnation);
    if (incarnation < this.#incarnation[instance] || number <= this.#number[instance]) return 'stale';
    if (this.#missed[instance] > 0 || number > this.#number[instance] + 1) {
      const missed = this.#missed[instance];
      this.#missed[instance] = missed + 1;
      return missed % requestAgainAfter === 0 ? 'gap' : 'stale';
    }
    for (let i = 0; i < changes; i++) {
      const at = i * digestWords;
      if (stored[i] === blockChange.removed) this.#table.remove(words, at, instance);
      else this.#table.add(words, at, instance);
      if (stored[i] === blockChange.onSsd) this.#ssdOnly.add(words, at, instance);
      else if (this.#ssdOnly.held[instance] > 0) this.#ssdOnly.remove(words, at, instance);
    }
    this.#number[instance] = number;
    return 'applied';
  }

  /**
   * Replaces the entries of the instance by a snapshot; false if the snapshot is older than the entries, or applied
   * already.
   */
  restore(instance: number, { incarnation, number, blocks, words, onSsd = 0 }: KvSnapshot): boolean {
    const known = this.#incarnation[instance];
    const isNewer =
      number > this.#number[instance] || (number === this.#number[instance] && this.#missed[instance] > 0);
    if (incarnation < known || (incarnation === known && !isNewer)) return false;
    this.#begin(instance, incarnation);
    for (let i = 0; i < blocks; i++) this.#table.add(words, i * digestWords, instance);
    for (let i = blocks - onSsd; i < blocks; i++) this.#ssdOnly.add(words, i * digestWords, instance);
    this.#number[instance] = number;
    return true;
  }

  /** The instance and its blocks are lost. Batches of its incarnation are stale from now on. */
  removeInstance(instance: number): void {
    this.#begin(instance, this.#incarnation[instance] + 1);
  }

  /** The instance runs in this incarnation, even if it was declared failed. Its blocks are unknown until a snapshot. */
  instanceJoined(instance: number, incarnation: number): void {
    this.#begin(instance, incarnation);
    this.#missed[instance] = 1;
  }

  /** True if the instance has reported more than is applied, up to batch `number` of this incarnation. */
  isBehind(instance: number, incarnation: number, number: number): boolean {
    const known = this.#incarnation[instance];
    return (
      incarnation > known || (incarnation === known && (this.#missed[instance] > 0 || number > this.#number[instance]))
    );
  }

  #heldIn(words: Uint32Array, at: number): HeldIn {
    const holders = this.holdersOf(words, at);
    if (holders === 0) return heldIn.nothing;
    const onSsd = this.#ssdOnly.holders(this.#ssdOnly.find(words, at)) ?? 0;
    return onSsd < holders ? heldIn.memory : heldIn.ssd;
  }

  #begin(instance: number, incarnation: number): void {
    this.#table.removeInstance(instance);
    this.#ssdOnly.removeInstance(instance);
    this.#incarnation[instance] = incarnation;
    this.#number[instance] = 0;
    this.#missed[instance] = 0;
  }

  /**
   * The longest prefix of the chain's first `blocksMax` blocks on each instance. One lookup for each block that some
   * instance still matches.
   */
  match(chain: BlockChain, blocksMax: number, out: PrefixMatches): void {
    out.clear();
    const { blocks: reach, remaining: walking } = out;
    const blocks = Math.min(blocksMax, chain.blocks);
    if (blocks === 0) return;
    let left = this.#table.list(this.#table.find(chain.words, 0), walking);
    for (let i = 0; i < left; i++) {
      out.instances[i] = walking[i];
      reach[walking[i]] = 1;
    }
    out.count = left;
    for (let block = 1; block < blocks && left > 0; block++) {
      left = this.#table.keepHolders(this.#table.find(chain.words, block * digestWords), walking, left, reach, block);
    }
    for (let i = 0; i < out.count; i++) {
      const instance = out.instances[i];
      if (this.#ssdOnly.held[instance] > 0) out.onSsd[instance] = this.#ssdOnlyTail(chain, reach[instance], instance);
    }
  }

  /**
   * Number of the chain's first `blocks` blocks, at their end, that the instance has only on SSD. Tiers evict a prefix
   * from its end.
   */
  #ssdOnlyTail(chain: BlockChain, blocks: number, instance: number): number {
    let first = blocks;
    while (first > 0 && this.#ssdOnly.has(this.#ssdOnly.find(chain.words, (first - 1) * digestWords), instance))
      first--;
    return blocks - first;
  }

  /** True if the instance has reported the block of the digest at `words[at..at+4]` as stored. */
  holds(instance: number, words: Uint32Array, at: number): boolean {
    return this.#table.has(this.#table.find(words, at), instance);
  }

  /** Number of instances with the block of the digest at `words[at..at+4]`. */
  holdersOf(words: Uint32Array, at: number): number {
    return this.#table.holders(this.#table.find(words, at)) ?? 0;
  }

  /** Whether an instance holds the chain's block at `index`, or has evicted it. */
  replicaState(chain: BlockChain, index: number): ReplicaState {
    return this.#table.replicaState(chain.words, index * digestWords);
  }

  /** Throws unless the index is sound. Scans all of it. */
  check(): void {
    this.#table.check();
    this.#ssdOnly.check();
  }
}

/**
 * The instance with the longest prefix; among equals the one with the smallest send backlog, then the lowest index.
 * @param transfers `backlogUs`: time until an instance has sent everything queued
 */
export function longestMatch(
  matches: PrefixMatches | undefined,
  transfers: { backlogUs(from: number): number },
): number | undefined {
  let best: number | undefined;
  if (matches === undefined) return undefined;
  for (let i = 0; i < matches.count; i++) {
    const instance = matches.instances[i];
    if (best === undefined || matches.blocks[instance] > matches.blocks[best]) best = instance;
    if (best === instance || matches.blocks[instance] < matches.blocks[best]) continue;
    const lessUs = transfers.backlogUs(best) - transfers.backlogUs(instance);
    if (lessUs > 0 || (lessUs === 0 && instance < best)) best = instance;
  }
  return best;
}
