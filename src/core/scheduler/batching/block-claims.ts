// Block claims: which sequence computes which full block, so that requests that start together compute a shared prefix once.
import { digestWords } from '../../../util/blake2s.ts';
import { DigestTable } from '../../../util/digest-table.ts';
import { outranks, type Sequence } from './sequence.ts';

/**
 * A claim states that a running sequence will compute a block. It ends when the block is committed or its owner stops
 * running.
 */
export class BlockClaims {
  readonly #table = new DigestTable();
  /** Claiming sequences by slot. */
  readonly #owners: (Sequence | undefined)[];
  readonly #freeSlots: number[];
  readonly #blockTokens: number;

  constructor(sequencesMax: number, blockTokens: number) {
    this.#blockTokens = blockTokens;
    this.#owners = new Array<Sequence | undefined>(sequencesMax).fill(undefined);
    this.#freeSlots = Array.from({ length: sequencesMax }, (_, i) => sequencesMax - 1 - i);
  }

  get size(): number {
    return this.#table.size;
  }

  /**
   * The sequence starts to run: claims its uncomputed full blocks, except those claimed by sequences that outrank it.
   */
  open(sequence: Sequence): void {
    const slot = this.#freeSlots.pop();
    if (slot === undefined) throw new Error(`Cannot claim blocks: all ${this.#owners.length} slots are in use`);
    this.#owners[slot] = sequence;
    sequence.slot = slot;
    sequence.claimedFrom = Math.floor(sequence.computed / this.#blockTokens);
    sequence.claimedTo = sequence.chain.blocks;
    for (let block = sequence.claimedFrom; block < sequence.claimedTo; block++) {
      const taken = this.#table.getOrSet(sequence.chain.words, block * digestWords, slot);
      const owner = taken === undefined ? undefined : this.#owners[taken];
      if (owner !== undefined && outranks(sequence, owner)) {
        this.#table.set(sequence.chain.words, block * digestWords, slot);
      }
    }
  }

  /** The sequence has computed its blocks before `block`. */
  advance(sequence: Sequence, block: number): void {
    const to = Math.min(block, sequence.claimedTo);
    for (let i = sequence.claimedFrom; i < to; i++) {
      this.#table.deleteIf(sequence.chain.words, i * digestWords, sequence.slot);
    }
    sequence.claimedFrom = Math.max(sequence.claimedFrom, to);
  }

  /** The sequence stops running. */
  close(sequence: Sequence): void {
    this.advance(sequence, sequence.claimedTo);
    this.#owners[sequence.slot] = undefined;
    this.#freeSlots.push(sequence.slot);
  }

  /** The sequence that computes the block at index `block` of this sequence's chain. */
  owner(sequence: Sequence, block: number): Sequence | undefined {
    const slot = this.#table.get(sequence.chain.words, block * digestWords);
    return slot === undefined ? undefined : this.#owners[slot];
  }

  /**
   * The last of the sequence's blocks `from..to` that higher ranks compute without a gap: the block to wait for. Waiting
   * only for higher ranks cannot form a cycle, and a low priority never delays a high one.
   */
  lastPending(sequence: Sequence, from: number, to: number): number | undefined {
    let last: number | undefined;
    for (let block = from; block < to && this.isPending(sequence, block); block++) last = block;
    return last;
  }

  isPending(sequence: Sequence, block: number): boolean {
    const owner = this.owner(sequence, block);
    return owner !== undefined && outranks(owner, sequence);
  }
}
