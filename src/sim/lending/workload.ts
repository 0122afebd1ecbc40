// Sequences that grow in an instance's memory and beyond it: the local callers of an rManager, in a world without an engine.
import { BlockTable, type InstanceMemory, type RBlockId } from '../../cluster/lending/instance-memory.ts';
import type { RManager } from '../../cluster/rmanager.ts';
import type { Dice } from './dice.ts';

interface Growing {
  /** Blocks that it ends with. */
  readonly target: number;
  readonly table: BlockTable;
  readonly rblocks: Set<RBlockId>;
  stalls: number;
  /** Steps that it stays once it is as long as it gets. */
  stays: number;
}

/** Steps that a sequence waits for a block before it gives up what it has. */
const stallsMax = 12;
/** Steps that a sequence stays on average: so long that debts outlive the load that they came from, and cycles of them arise. */
const staysMean = 80;

export class Workload {
  readonly #memory: InstanceMemory;
  readonly #rmanager: RManager;
  readonly #dice: Dice;
  /** Below so many available blocks at home, sequences grow abroad. */
  readonly #reserveBlocks: number;
  readonly #sequences = new Set<Growing>();

  constructor(memory: InstanceMemory, rmanager: RManager, dice: Dice, reserveBlocks: number) {
    this.#memory = memory;
    this.#rmanager = rmanager;
    this.#dice = dice;
    this.#reserveBlocks = reserveBlocks;
  }

  get size(): number {
    return this.#sequences.size;
  }

  /** A block for every sequence; with `load` in [0, 1] new ones come. Returns how many blocks a step now takes. */
  grow(load: number): number {
    if (this.#dice.chance(load) && this.#sequences.size < 24) {
      const target = this.#dice.between(2, 10);
      const stays = this.#dice.around(staysMean);
      this.#sequences.add({ target, table: new BlockTable(1), rblocks: new Set(), stalls: 0, stays });
    }
    for (const sequence of this.#sequences) {
      if (sequence.table.length + sequence.rblocks.size >= sequence.target) {
        if (--sequence.stays < 0) this.#end(sequence, true);
      } else if (this.#extend(sequence)) sequence.stalls = 0;
      else if (++sequence.stalls > stallsMax) this.#end(sequence, false);
    }
    return this.#sequences.size;
  }

  /** Moves these home, or ends who holds them: it never waits for anything. */
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

  /** Their contents are gone: who held them starts again. */
  lose(rblocks: readonly RBlockId[]): void {
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

  /** A random one ends before its time. */
  cancelOne(): void {
    const all = [...this.#sequences];
    if (all.length > 0) this.#end(all[this.#dice.between(0, all.length - 1)], true);
  }

  #extend(sequence: Growing): boolean {
    const { available } = this.#memory.lending.device.figures;
    const rblock = available <= this.#reserveBlocks ? this.#rmanager.take() : undefined;
    if (rblock === undefined) return this.#memory.cache.allocate(sequence.table);
    sequence.rblocks.add(rblock);
    return true;
  }

  /** With `keep`, what it computed at home stays as cache. */
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
          throw new Error(`Workload broken: a sequence holds rBlock ${rblock}, which is not known`);
      }
    }
    const { size } = this.#rmanager.table;
    if (rblocks !== size) throw new Error(`Workload broken: ${rblocks} rBlocks held, ${size} known`);
    if (pages !== this.#memory.cache.usedPages)
      throw new Error(`Workload broken: ${pages} pages in tables, ${this.#memory.cache.usedPages} used`);
  }
}
