// The holders of each block: an open-addressing table from digests to instances, in one typed array.
import { digestWords } from '../../../util/blake2s.ts';
import { placeAt } from '../../../util/digest-table.ts';
import { CheckInterval } from '../check-interval.ts';
import { HolderSets } from './holder-sets.ts';

/** (slots, 8 words): digest; state; holders. Half a cache line. */
const slotWords = 8;
/** The state's word: 0: empty; else holders + 1, with a bit if the holders are in a set. */
const stateAt = digestWords;
const inSet = 0x80000000;
/** The first of the words with up to six holders, 16 bits each, or with the number of their set. */
const holdersAt = digestWords + 1;
const inlineMax = 2 * (slotWords - holdersAt);
/**
 * A set is closed at this number of holders, below `inlineMax`, so that holders do not move with each small change.
 */
const inlineAgainAt = inlineMax - 2;

/** Maximum share of slots for held blocks, and for held and remembered blocks together. */
const heldShare = 0.6;
const takenShare = 0.75;

export const instancesMax = 0xffff;

/** State of a block, as far as the table remembers. */
export type ReplicaState = 'never seen' | 'evicted' | 'held';

export interface Replication {
  /** Distinct blocks that instances hold. */
  readonly blocks: number;
  /** Blocks that more than one instance holds. */
  readonly onSeveral: number;
  /** Blocks summed over all instances. */
  readonly copies: number;
}

/**
 * A block without holders is remembered until its slot is required: this distinguishes an evicted block from a new
 * one. A word of the digest selects the slot, as in a `DigestTable`. Lookups allocate nothing.
 */
export class ReplicaTable {
  /** (instances): blocks that each one holds. */
  readonly held: Int32Array;
  readonly #sets: HolderSets;
  readonly #slotsMax: number;
  #words: Uint32Array;
  #mask: number;
  #blocks = 0;
  #remembered = 0;
  /** Counts added and removed holders. */
  #changes = 0;
  readonly #checks = new CheckInterval();
  readonly #onChange: ((words: Uint32Array, at: number) => void) | undefined;
  /** Clock hand: where the search for the next remembered block to drop starts. */
  #hand = 0;

  /**
   * @param blocks initial capacity
   * @param remembered blocks without holders that the table also grows for
   * @param onChange the holders of the block of the digest at `words[at..at+4]` have changed
   */
  constructor(
    instances: number,
    blocks: number,
    remembered: number,
    onChange?: (words: Uint32Array, at: number) => void,
  ) {
    if (instances > instancesMax)
      throw new RangeError(`Cannot index ${instances} instances: ${instancesMax} is the maximum`);
    const slots = powerOfTwo(blocks / heldShare);
    this.held = new Int32Array(instances);
    this.#onChange = onChange;
    this.#sets = new HolderSets(instances);
    this.#slotsMax = Math.max(slots, powerOfTwo((blocks + remembered) / takenShare));
    this.#words = new Uint32Array(slots * slotWords);
    this.#mask = slots - 1;
  }

  /** Blocks that instances hold. */
  get blocks(): number {
    return this.#blocks;
  }

  /** Number of copies of the blocks. Scans the whole table. */
  replication(): Replication {
    let [onSeveral, copies] = [0, 0];
    for (let slot = 0; slot < this.#words.length; slot += slotWords) {
      const holders = this.holders(slot) ?? 0;
      copies += holders;
      if (holders > 1) onSeveral++;
    }
    return { blocks: this.#blocks, onSeveral, copies };
  }

  /** From now on the instance holds the block of the digest at `words[at..at+4]`; false when it did already. */
  add(words: Uint32Array, at: number, instance: number): boolean {
    this.#changes++;
    let slot = this.find(words, at);
    if (this.#words[slot + stateAt] === 0) {
      if (this.#blocks + this.#remembered >= takenShare * (this.#mask + 1)) {
        this.#makeSpace();
        slot = this.find(words, at);
      }
      for (let i = 0; i < digestWords; i++) this.#words[slot + i] = words[at + i];
      this.#words[slot + stateAt] = 1;
      this.#remembered++;
    }
    return this.#addHolder(slot, instance);
  }

  /** The instance does not hold the block any more; false when it did not. */
  remove(words: Uint32Array, at: number, instance: number): boolean {
    const slot = this.find(words, at);
    return this.#words[slot + stateAt] !== 0 && this.#removeHolder(slot, instance);
  }

  replicaState(words: Uint32Array, at: number): ReplicaState {
    const holders = this.holders(this.find(words, at));
    return holders === undefined ? 'never seen' : holders === 0 ? 'evicted' : 'held';
  }

  /** Removes the instance from every block. Scans the whole table. */
  removeInstance(instance: number): void {
    for (let slot = 0; slot < this.#words.length && this.held[instance] > 0; slot += slotWords) {
      if (this.#words[slot + stateAt] > 1) this.#removeHolder(slot, instance);
    }
  }

  /** The slot of the digest, or the empty slot for it. Slots are valid until the next `add`. */
  find(words: Uint32Array, at: number): number {
    const table = this.#words;
    const w0 = words[at];
    for (let slot = words[at + placeAt] & this.#mask; ; slot = (slot + 1) & this.#mask) {
      const k = slot * slotWords;
      if (table[k + stateAt] === 0) return k;
      if (
        table[k] === w0 &&
        table[k + 1] === words[at + 1] &&
        table[k + 2] === words[at + 2] &&
        table[k + 3] === words[at + 3]
      )
        return k;
    }
  }

  /** True if the instance holds the slot's block. */
  has(slot: number, instance: number): boolean {
    if (this.#isSet(slot)) return this.#sets.has(this.#words[slot + holdersAt], instance);
    const holders = this.holders(slot) ?? 0;
    for (let i = 0; i < holders; i++) if (this.#inline(slot, i) === instance) return true;
    return false;
  }

  /** Number of holders of a slot's block; undefined for an empty slot. */
  holders(slot: number): number | undefined {
    const state = this.#words[slot + stateAt];
    return state === 0 ? undefined : (state & ~inSet) - 1;
  }

  /** Writes the holders of a slot's block to `out`; returns how many. */
  list(slot: number, out: Int32Array): number {
    const holders = this.holders(slot) ?? 0;
    if (this.#isSet(slot)) return this.#sets.list(this.#words[slot + holdersAt], out);
    for (let i = 0; i < holders; i++) out[i] = this.#inline(slot, i);
    return holders;
  }

  /**
   * Keeps those of the first `count` instances in `from` that also hold the slot's block; returns how many. `reach[i]`
   * is the number of blocks that instance i holds: `length` for all in `from`, and one more for those that stay.
   */
  keepHolders(slot: number, from: Int32Array, count: number, reach: Int32Array, length: number): number {
    let kept = 0;
    if (this.#isSet(slot)) {
      const set = this.#words[slot + holdersAt];
      for (let i = 0; i < count; i++) {
        const instance = from[i];
        if (this.#sets.has(set, instance)) from[kept++] = instance;
      }
    } else {
      const holders = this.holders(slot) ?? 0;
      for (let i = 0; i < holders; i++) {
        const instance = this.#inline(slot, i);
        if (reach[instance] === length) from[kept++] = instance;
      }
    }
    for (let i = 0; i < kept; i++) reach[from[i]] = length + 1;
    return kept;
  }

  #isSet(slot: number): boolean {
    return this.#words[slot + stateAt] >= inSet;
  }

  #inline(slot: number, i: number): number {
    const word = this.#words[slot + holdersAt + (i >> 1)];
    return (i & 1) === 0 ? word & 0xffff : word >>> 16;
  }

  #setInline(slot: number, i: number, instance: number): void {
    const at = slot + holdersAt + (i >> 1);
    const word = this.#words[at];
    this.#words[at] = (i & 1) === 0 ? (word & 0xffff0000) | instance : (word & 0xffff) | (instance << 16);
  }

  #addHolder(slot: number, instance: number): boolean {
    const holders = this.holders(slot) ?? 0;
    if (this.#isSet(slot)) {
      if (!this.#sets.add(this.#words[slot + holdersAt], instance)) return false;
    } else {
      for (let i = 0; i < holders; i++) if (this.#inline(slot, i) === instance) return false;
      if (holders < inlineMax) this.#setInline(slot, holders, instance);
      else this.#moveToSet(slot, holders, instance);
    }
    this.#words[slot + stateAt] = this.#words[slot + stateAt] + 1;
    this.held[instance] = this.held[instance] + 1;
    if (holders === 0) {
      this.#remembered--;
      this.#blocks++;
    }
    this.#onChange?.(this.#words, slot);
    return true;
  }

  #removeHolder(slot: number, instance: number): boolean {
    this.#changes++;
    const last = (this.holders(slot) ?? 0) - 1;
    if (this.#isSet(slot)) {
      if (!this.#sets.remove(this.#words[slot + holdersAt], instance)) return false;
      if (last === inlineAgainAt) this.#moveInline(slot);
    } else {
      let place = 0;
      while (place <= last && this.#inline(slot, place) !== instance) place++;
      if (place > last) return false;
      this.#setInline(slot, place, this.#inline(slot, last));
    }
    this.#words[slot + stateAt] = this.#words[slot + stateAt] - 1;
    this.held[instance] = this.held[instance] - 1;
    if (last === 0) {
      this.#blocks--;
      this.#remembered++;
    }
    this.#onChange?.(this.#words, slot);
    return true;
  }

  #moveToSet(slot: number, holders: number, instance: number): void {
    const set = this.#sets.open();
    for (let i = 0; i < holders; i++) this.#sets.add(set, this.#inline(slot, i));
    this.#sets.add(set, instance);
    this.#words[slot + holdersAt] = set;
    this.#words[slot + stateAt] = this.#words[slot + stateAt] | inSet;
  }

  #moveInline(slot: number): void {
    const set = this.#words[slot + holdersAt];
    const holders = new Int32Array(inlineAgainAt);
    this.#sets.list(set, holders);
    this.#sets.close(set);
    this.#words[slot + stateAt] = this.#words[slot + stateAt] & ~inSet;
    for (let i = 0; i < inlineAgainAt; i++) this.#setInline(slot, i, holders[i]);
  }

  /** Makes space for one block: grows the table, or drops a remembered block. */
  #makeSpace(): void {
    const slots = this.#mask + 1;
    if (slots < this.#slotsMax || this.#blocks >= heldShare * slots) {
      this.#grow(2 * slots);
      return;
    }
    // At least a fifth of the taken slots has no holders: the hand soon finds one.
    while (this.#words[this.#hand * slotWords + stateAt] !== 1) this.#hand = (this.#hand + 1) & this.#mask;
    this.#clear(this.#hand);
    this.#remembered--;
  }

  /** Backward shift: entries that probed past the hole move into it. */
  #clear(place: number): void {
    let hole = place;
    const table = this.#words;
    for (let slot = (hole + 1) & this.#mask; table[slot * slotWords + stateAt] !== 0; slot = (slot + 1) & this.#mask) {
      const home = table[slot * slotWords + placeAt] & this.#mask;
      if (((slot - home) & this.#mask) < ((slot - hole) & this.#mask)) continue;
      for (let i = 0; i < slotWords; i++) table[hole * slotWords + i] = table[slot * slotWords + i];
      hole = slot;
    }
    table[hole * slotWords + stateAt] = 0;
  }

  #grow(slots: number): void {
    const before = this.#words;
    this.#words = new Uint32Array(slots * slotWords);
    this.#mask = slots - 1;
    this.#hand = 0;
    for (let from = 0; from < before.length; from += slotWords) {
      if (before[from + stateAt] === 0) continue;
      const to = this.find(before, from);
      for (let i = 0; i < slotWords; i++) this.#words[to + i] = before[from + i];
    }
  }

  /**
   * Throws unless every block is found by its digest, its holders are counted once, and every set belongs to one block.
   */
  check(): void {
    if (!this.#checks.isDue(this.#changes)) return;
    const held = new Int32Array(this.held.length);
    const holders = new Int32Array(this.held.length);
    let [blocks, remembered, sets] = [0, 0, 0];
    for (let slot = 0; slot < this.#words.length; slot += slotWords) {
      const count = this.holders(slot);
      if (count === undefined) continue;
      if (this.find(this.#words, slot) !== slot) throw new Error(`Prefix index broken: slot ${slot} is not found`);
      const listed = this.list(slot, holders);
      for (let i = 0; i < listed; i++) held[holders[i]]++;
      if (listed !== count || hasRepeated(holders, listed))
        throw new Error(`Prefix index broken: slot ${slot} has ${count} holders, ${listed} are listed`);
      if (count === 0) remembered++;
      else blocks++;
      sets += this.#isSet(slot) ? 1 : 0;
    }
    if (blocks !== this.#blocks || remembered !== this.#remembered || sets !== this.#sets.size)
      throw new Error(`Prefix index broken: ${blocks}/${remembered}/${sets} blocks are held/remembered/in sets`);
    for (let instance = 0; instance < held.length; instance++)
      if (held[instance] !== this.held[instance])
        throw new Error(
          `Prefix index broken: instance ${instance} holds ${held[instance]} blocks, ${this.held[instance]} are counted`,
        );
  }
}

function hasRepeated(values: Int32Array, count: number): boolean {
  if (count > 16) return new Set(values.subarray(0, count)).size !== count;
  for (let i = 1; i < count; i++) for (let j = 0; j < i; j++) if (values[i] === values[j]) return true;
  return false;
}

function powerOfTwo(least: number): number {
  return 2 ** Math.max(4, Math.ceil(Math.log2(least)));
}
