// A workload for rManagers without engines: sequences that grow in an instance's memory and in borrowed memory.
import { BlockTable, type InstanceMemory, type RBlockId } from '../../core/lending/instance-memory.ts';
import type { RManager } from '../../core/lending/rmanager.ts';
import type { DemandUpdate, Reservation } from '../../core/protocol/lending-messages.ts';
import type { Prng } from '../../util/prng.ts';

interface Growing {
  /** Final length in blocks. */
  readonly target: number;
  readonly table: BlockTable;
  readonly rblocks: Set<RBlockId>;
  stalls: number;
  /** Remaining steps at its final length. */
  finalSteps: number;
  /** It exceeds any single instance, and its final length is reserved. */
  readonly reserved: boolean;
}

/** Steps that a sequence waits for a block before it ends. */
const stallsMax = 12;
/** Mean steps at the final length: long enough that debts outlive the load that caused them, and cycles of debts arise. */
const finalStepsMean = 80;
/** Of a reserved sequence: blocks per step, steps that it waits for a block, and steps at its final length. */
const reservedStepBlocks = 4;
const reservedStallsMax = 100;
const reservedFinalSteps = 5;

export class GrowingSequences {
  readonly #memory: InstanceMemory;
  readonly #rmanager: RManager;
  readonly #prng: Prng;
  /** With fewer available blocks at home, sequences grow in borrowed memory. */
  readonly #lowWaterBlocks: number;
  readonly #longChance: number;
  readonly #sequences = new Set<Growing>();
  /** A long sequence that waits for its reservation, and then for memory. */
  #long: Reservation | undefined;
  #longNumber = 0;
  /** Admitted long sequences, and holds that kept other sequences out. */
  reservations = 0;
  holds = 0;
  #hold: number | undefined;

  /** @param longChance probability per step that a long sequence arrives, while none waits or runs */
  constructor(
    memory: InstanceMemory,
    rmanager: RManager,
    prng: Prng,
    { lowWaterBlocks, longChance }: { readonly lowWaterBlocks: number; readonly longChance: number },
  ) {
    this.#longChance = longChance;
    this.#memory = memory;
    this.#rmanager = rmanager;
    this.#prng = prng;
    this.#lowWaterBlocks = lowWaterBlocks;
  }

  get size(): number {
    return this.#sequences.size;
  }

  /** Expected demand. */
  get demand(): Omit<DemandUpdate, 'kind' | 'blocksPerSecond'> {
    const guaranteedBlocks = this.#guaranteedBlocks;
    return {
      aheadBlocks: guaranteedBlocks,
      starvedBlocks: 0,
      guaranteedBlocks,
      reservation: this.#long,
      reservedSequences: this.#reservedCount,
      reservationsAdmitted: this.reservations,
    };
  }

  /** The long sequence that waits. */
  get pending(): Reservation | undefined {
    return this.#long;
  }

  /** Cancels the long sequence that waits. */
  cancelPending(): void {
    this.#long = undefined;
  }

  /** One step: each sequence grows by a block. @param load probability that a sequence arrives. @returns blocks of the next step */
  grow(load: number): number {
    this.#countHolds();
    const keepsOut = this.#hold !== undefined || (this.#long !== undefined && this.#rmanager.holdsReservation);
    if (this.#prng.chance(load) && this.#sequences.size < 24 && !keepsOut) {
      const target = this.#prng.integer(2, 10);
      this.#add(target, this.#prng.exponentialUs(finalStepsMean), false);
    }
    this.#admitReserved();
    for (const sequence of this.#sequences) {
      const { reserved, target } = sequence;
      if (lengthOf(sequence) >= target) {
        if (--sequence.finalSteps < 0) this.#end(sequence, true);
      } else if (this.#extend(sequence)) {
        sequence.stalls = 0;
        for (let i = 1; i < reservedStepBlocks && reserved && lengthOf(sequence) < target; i++) this.#extend(sequence);
      } else if (++sequence.stalls > (reserved ? reservedStallsMax : stallsMax)) this.#end(sequence, false);
    }
    return this.#sequences.size;
  }

  #countHolds(): void {
    const { hold } = this.#rmanager.creditor;
    if (hold !== undefined && hold !== this.#hold) this.holds++;
    this.#hold = hold;
  }

  /** A long sequence arrives at random. It is admitted when the instance holds the reservation and has memory for all of it. */
  #admitReserved(): void {
    const { available, total } = this.#memory.lending.device.totals;
    if (this.#long === undefined) {
      if (this.#reservedCount === 0 && this.#longChance > 0 && this.#prng.chance(this.#longChance))
        this.#long = { number: ++this.#longNumber, blocks: total + this.#prng.integer(1, Math.floor(total / 3)) };
      return;
    }
    const freeBlocks = available + this.#rmanager.idleBlocks - this.#guaranteedBlocks;
    if (!this.#rmanager.holdsReservation || freeBlocks < this.#long.blocks) return;
    this.#add(this.#long.blocks, reservedFinalSteps, true);
    this.reservations++;
    this.#long = undefined;
  }

  #add(target: number, finalSteps: number, reserved: boolean): void {
    this.#sequences.add({ target, table: new BlockTable(1), rblocks: new Set(), stalls: 0, finalSteps, reserved });
  }

  get #reservedCount(): number {
    let count = 0;
    for (const { reserved } of this.#sequences) if (reserved) count++;
    return count;
  }

  /** Blocks that reserved sequences still require. */
  get #guaranteedBlocks(): number {
    let blocks = 0;
    for (const sequence of this.#sequences) if (sequence.reserved) blocks += sequence.target - lengthOf(sequence);
    return blocks;
  }

  /** Moves these home, or ends the sequences that hold them. Never waits. */
  vacate(rblocks: readonly RBlockId[]): void {
    for (const rblock of rblocks) {
      const sequence = this.#holderOf(rblock);
      if (sequence === undefined || this.#rmanager.find(rblock)?.kind !== 'remote') continue;
      const home = this.#rmanager.takeHome('device');
      if (home === undefined) {
        this.#end(sequence, false);
        continue;
      }
      sequence.rblocks.delete(rblock);
      sequence.rblocks.add(home);
      this.#rmanager.free(rblock);
    }
  }

  /** Their contents are lost: the sequences that hold them end. */
  contentsLost(rblocks: readonly RBlockId[]): void {
    const gone = new Set(rblocks);
    let held = 0;
    for (const sequence of this.#sequences) {
      const before = held;
      for (const rblock of sequence.rblocks) if (gone.has(rblock) && sequence.rblocks.delete(rblock)) held++;
      if (held > before) this.#end(sequence, false);
    }
    if (held !== gone.size) throw new Error(`Workload broken: ${gone.size} rBlocks were lost, ${held} of them held`);
  }

  endAll(): void {
    for (const sequence of this.#sequences) this.#end(sequence, true);
  }

  /** Ends a random sequence. */
  cancelOne(): void {
    const all = [...this.#sequences];
    if (all.length > 0) this.#end(all[this.#prng.integer(0, all.length - 1)], true);
  }

  #extend(sequence: Growing): boolean {
    const { available } = this.#memory.lending.device.totals;
    if (!sequence.reserved && available + this.#rmanager.idleBlocks <= this.#guaranteedBlocks) return false;
    const rblock = available <= this.#lowWaterBlocks ? this.#rmanager.take() : undefined;
    if (rblock === undefined) return this.#memory.cache.allocate(sequence.table);
    sequence.rblocks.add(rblock);
    return true;
  }

  /** With `keep`, its blocks at home stay as cache. */
  #end(sequence: Growing, keep: boolean): void {
    if (!this.#sequences.delete(sequence)) return;
    const { table, rblocks } = sequence;
    if (keep) this.#memory.leaveAsCache(table);
    else this.#memory.cache.release(table);
    for (const rblock of rblocks) this.#rmanager.free(rblock);
    rblocks.clear();
  }

  #holderOf(rblock: RBlockId): Growing | undefined {
    for (const sequence of this.#sequences) if (sequence.rblocks.has(rblock)) return sequence;
    return undefined;
  }

  /** Throws unless every rBlock and every block of a table belongs to one sequence. */
  check(): void {
    let rblocks = 0;
    let pages = 0;
    for (const sequence of this.#sequences) {
      rblocks += sequence.rblocks.size;
      pages += this.#memory.cache.pagesOf(sequence.table);
      for (const rblock of sequence.rblocks) {
        if (this.#rmanager.find(rblock) === undefined)
          throw new Error(`Workload broken: a sequence holds rBlock ${rblock}, which the rManager does not have`);
      }
    }
    const { size } = this.#rmanager.table;
    if (rblocks !== size) throw new Error(`Workload broken: ${rblocks} rBlocks held, the rManager has ${size}`);
    if (pages !== this.#memory.cache.usedPages)
      throw new Error(`Workload broken: ${pages} pages in tables, ${this.#memory.cache.usedPages} used`);
  }
}

function lengthOf({ table, rblocks }: Growing): number {
  return table.length + rblocks.size;
}
