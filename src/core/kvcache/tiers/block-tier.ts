// One lower tier of the prefix cache, host memory or SSD: slots with blocks, found by digest.
import { digestWords } from '../../../util/blake2s.ts';
import { DigestIndex } from '../../../util/digest-table.ts';
import type { SlotId } from '../../protocol/ids.ts';
import { type BlockFacts, EvictionQueue, type EvictionRule, growingQueue } from '../eviction.ts';
import { FreeIds } from '../pools/free-ids.ts';

const isFree = 0;
/** The contents are in transit to the slot. */
const isArriving = 1;
const isHeld = 2;

/**
 * Receives a block that is evicted: its digest is at `words[at..at+4]`, valid during the call. `above`: a higher tier
 * has it too.
 */
export type Evicted = (words: Uint32Array, at: number, depth: number, above: boolean) => void;

const slotsInitial = 1024;

/**
 * A slot is free, waits for its contents, or holds them. A slot that waits or is pinned by a reader is not evicted. The
 * tier does not record the order of blocks in a prefix: callers touch whole prefixes, so that `lru` and `lfu` evict a
 * prefix from its end. Memory grows with the slots in use.
 */
export class BlockTier {
  readonly capacity: number;
  readonly #queue: ReturnType<typeof growingQueue<SlotId>>;
  readonly #evicted: Evicted;
  readonly #table = new DigestIndex();
  /** (slots, 4 words) */
  #digests: Uint32Array = new Uint32Array(0);
  #state = new Uint8Array(0);
  #pins = new Uint16Array(0);
  /** (slots): the tag passed to `arrived`. */
  #tags = new Uint8Array(0);
  /** (slots): 1: a higher tier has the block too. */
  #above = new Uint8Array(0);
  readonly #freeSlots: FreeIds;
  #held = 0;
  #arriving = 0;
  #reserved = 0;
  #evictions = 0;
  #changes = 0;

  /** @param facts undefined: blocks have no cost and no future */
  constructor(capacity: number, eviction: EvictionRule, evicted: Evicted, facts?: BlockFacts) {
    this.capacity = capacity;
    this.#freeSlots = new FreeIds(0, capacity);
    this.#queue = growingQueue(eviction, facts);
    this.#evicted = evicted;
  }

  /** Blocks with contents in the tier. */
  get held(): number {
    return this.#held;
  }

  /** Blocks with contents in transit to the tier. */
  get arriving(): number {
    return this.#arriving;
  }

  /** Slots that have given their memory to another use. */
  get reserved(): number {
    return this.#reserved;
  }

  /** (slots, 4 words): digests, undefined for free slots. Valid until the next `take`. */
  get digests(): Uint32Array {
    return this.#digests;
  }

  /** Counts the changes of slots, pins and reserved memory. */
  get changes(): number {
    return this.#changes;
  }

  get evictions(): number {
    return this.#evictions;
  }

  /** The time of all uses until the next call. */
  enter(nowUs: number): void {
    if (this.#queue instanceof EvictionQueue) this.#queue.nowUs = nowUs;
  }

  /** Blocks used between two ticks count as used at the same time. */
  tick(): void {
    this.#queue.tick();
  }

  /** The slot that holds the contents of the digest at `words[at..at+4]`. Does not pin it. */
  find(words: Uint32Array, at: number): SlotId | undefined {
    const slot = this.#table.get(this.#digests, words, at);
    return slot !== undefined && this.#state[slot] === isHeld ? slot : undefined;
  }

  /** The slot to which the contents of the digest at `words[at..at+4]` are in transit. */
  findArriving(words: Uint32Array, at: number): SlotId | undefined {
    const slot = this.#table.get(this.#digests, words, at);
    return slot !== undefined && this.#state[slot] === isArriving ? slot : undefined;
  }

  /** True if the tier holds this block, or its contents are in transit. */
  contains(words: Uint32Array, at: number): boolean {
    return this.#table.get(this.#digests, words, at) !== undefined;
  }

  /**
   * Allocates a slot for a block and evicts if necessary. The slot waits for its contents until `arrived` or `drop`.
   * Undefined when every slot is in use, or the block has a slot already.
   */
  allocate(words: Uint32Array, at: number, depth: number): SlotId | undefined {
    while (this.#held + this.#arriving >= this.capacity - this.#reserved) if (!this.#evictOne()) return undefined;
    if (this.contains(words, at)) return undefined;
    const slot = this.#freeSlots.take();
    if (slot >= this.#state.length) this.#grow();
    this.#changes++;
    for (let i = 0; i < digestWords; i++) this.#digests[slot * digestWords + i] = words[at + i];
    this.#table.insert(this.#digests, slot);
    this.#state[slot] = isArriving;
    this.#above[slot] = 0;
    this.#arriving++;
    if (this.#queue instanceof EvictionQueue) this.#queue.identify(slot, words, at);
    this.#queue.stored(slot, depth);
    return slot;
  }

  /** Allocates a slot for contents that are stored at once. Undefined when every slot is in use. */
  put(words: Uint32Array, at: number, depth: number): SlotId | undefined {
    const slot = this.allocate(words, at, depth);
    if (slot !== undefined) this.arrived(slot);
    return slot;
  }

  /** @param tag for `takeTag`, below 256 */
  arrived(slot: SlotId, tag = 0): void {
    if (this.#state[slot] !== isArriving) throw new Error(`Cannot fill a slot: nothing is expected: slot ${slot}`);
    this.#changes++;
    this.#state[slot] = isHeld;
    this.#tags[slot] = tag;
    this.#arriving--;
    this.#held++;
    if (this.#pins[slot] === 0) this.#queue.add(slot);
  }

  /** The tag passed to `arrived`; 0 from the second call on. */
  takeTag(slot: SlotId): number {
    const tag = this.#tags[slot] as number;
    this.#tags[slot] = 0;
    return tag;
  }

  /** A higher tier has the block too, or not any more. */
  setAbove(slot: SlotId, above: boolean): void {
    this.#changes++;
    this.#above[slot] = above ? 1 : 0;
  }

  isAbove(slot: SlotId): boolean {
    return this.#above[slot] === 1;
  }

  /** Blocks before it plus one, for a block that is held or in transit. */
  depth(slot: SlotId): number {
    return this.#queue.depth(slot);
  }

  /**
   * Restores blocks from an earlier run: (blocks, 6) slot, depth and digest, least recently stored first. Only for an
   * empty tier; ignores slots beyond the capacity.
   */
  restore(blocks: Uint32Array): void {
    this.#changes++;
    while (this.#state.length < this.capacity) this.#grow();
    for (let i = 0; i < blocks.length; i += 2 + digestWords) {
      const slot = blocks[i] as SlotId;
      if (slot >= this.capacity || this.contains(blocks, i + 2)) continue;
      this.tick();
      for (let w = 0; w < digestWords; w++) this.#digests[slot * digestWords + w] = blocks[i + 2 + w];
      this.#table.insert(this.#digests, slot);
      this.#state[slot] = isHeld;
      this.#held++;
      this.#queue.stored(slot, blocks[i + 1] as number);
      this.#queue.add(slot);
    }
    this.#freeSlots.reset(this.capacity, (slot) => this.#state[slot] === isFree);
  }

  /** Counts a use of the block. */
  touch(slot: SlotId): void {
    this.#queue.touch(slot);
  }

  /** A reader pins the slot: it is not evicted until `unpin`, and counts as used until then. */
  pin(slot: SlotId): void {
    if (this.#state[slot] !== isHeld) throw new Error(`Cannot pin a slot: it holds nothing: slot ${slot}`);
    this.#changes++;
    if (this.#pins[slot] === 0) this.#queue.remove(slot);
    this.#pins[slot] = this.#pins[slot] + 1;
  }

  isPinned(slot: SlotId): boolean {
    return this.#pins[slot] > 0;
  }

  unpin(slot: SlotId): void {
    if (this.#pins[slot] === 0) throw new Error(`Cannot unpin a slot: it has no readers: slot ${slot}`);
    this.#changes++;
    this.#pins[slot] = this.#pins[slot] - 1;
    if (this.#pins[slot] > 0) return;
    this.#queue.release(slot, false);
    this.#queue.add(slot);
    this.evictToFit();
  }

  /** Frees the slot of a block without readers: its contents did not arrive or are useless. */
  drop(slot: SlotId): void {
    if (this.#state[slot] === isFree || this.#pins[slot] > 0)
      throw new Error(`Cannot drop a slot: it is free or has ${this.#pins[slot]} readers: slot ${slot}`);
    this.#changes++;
    if (this.#state[slot] === isHeld) this.#held--;
    else this.#arriving--;
    this.#queue.remove(slot);
    this.#table.delete(this.#digests, slot);
    this.#state[slot] = isFree;
    this.#freeSlots.release(slot);
  }

  /** From now on the memory of `slots` slots has another use. Evicts blocks without readers to free them. */
  setReserved(slots: number): void {
    this.#changes++;
    this.#reserved = Math.min(slots, this.capacity);
    this.evictToFit();
  }

  /** Evicts blocks that could not be evicted before, because they were pinned or in transit. */
  evictToFit(): void {
    while (this.#held + this.#arriving > this.capacity - this.#reserved) if (!this.#evictOne()) return;
  }

  /** Calls `visit` with the position of every digest that is held or in transit. */
  forEach(visit: (words: Uint32Array, at: number) => void): void {
    for (let slot = 0; slot < this.#state.length; slot++)
      if (this.#state[slot] !== isFree) visit(this.#digests, slot * digestWords);
  }

  /** Calls `visit` with every slot that holds contents, and the position of its digest. */
  forEachHeld(visit: (slot: SlotId, words: Uint32Array, at: number) => void): void {
    for (let slot = 0; slot < this.#state.length; slot++)
      if (this.#state[slot] === isHeld) visit(slot, this.#digests, slot * digestWords);
  }

  #evictOne(): boolean {
    const slot = this.#queue.pop();
    if (slot === undefined) return false;
    this.#evictions++;
    this.drop(slot);
    // The slot is free, and its digest stays until the slot is allocated again.
    this.#evicted(this.#digests, slot * digestWords, this.#queue.depth(slot), this.isAbove(slot));
    return true;
  }

  #grow(): void {
    const before = this.#state.length;
    const slots = Math.min(this.capacity, Math.max(slotsInitial, 2 * before));
    const digests = new Uint32Array(slots * digestWords);
    digests.set(this.#digests);
    this.#digests = digests;
    const state = new Uint8Array(slots);
    state.set(this.#state);
    this.#state = state;
    const pins = new Uint16Array(slots);
    pins.set(this.#pins);
    this.#pins = pins;
    const tags = new Uint8Array(slots);
    tags.set(this.#tags);
    this.#tags = tags;
    const above = new Uint8Array(slots);
    above.set(this.#above);
    this.#above = above;
    this.#queue.grow(slots);
  }

  /**
   * Throws unless every slot is in one state, found by its digest, and evictable exactly when it is held and not
   * pinned.
   */
  check(): void {
    const counts: [number, number, number] = [0, 0, 0];
    for (let slot = 0; slot < this.#state.length; slot++) {
      const state = this.#state[slot] as 0 | 1 | 2;
      counts[state]++;
      const evictable = state === isHeld && this.#pins[slot] === 0;
      if (state !== isFree && this.#table.get(this.#digests, this.#digests, slot * digestWords) !== slot)
        throw new Error(`Tier broken: slot ${slot} in state ${state} is not indexed`);
      if (this.#queue.has(slot) !== evictable || (state !== isHeld && this.#pins[slot] > 0))
        throw new Error(`Tier broken: slot ${slot} in state ${state} has ${this.#pins[slot]} readers`);
    }
    const [free, arriving, held] = counts;
    const unused = this.capacity - this.#state.length;
    if (free + unused !== this.#freeSlots.count || arriving !== this.#arriving || held !== this.#held)
      throw new Error(`Tier broken: ${free} free, ${arriving} arriving, ${held} held slots do not match the counts`);
    // Each of them has an entry of its own: any further entry would be one of a free slot.
    if (this.#table.size !== held + arriving)
      throw new Error(`Tier broken: ${this.#table.size} digests are indexed for ${held + arriving} slots`);
    if (held + arriving > this.capacity - this.#reserved && this.#queue.size > 0)
      throw new Error(`Tier broken: ${held + arriving} slots of ${this.capacity} with ${this.#reserved} reserved`);
  }
}
