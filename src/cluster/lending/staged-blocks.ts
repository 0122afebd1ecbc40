// Contents on their way home: in the staging buffer until a step may find them in the place that they were given.
import type { OutsideRows, PageRow } from '../../policy/blocks/outside-rows.ts';
import type { RBlockId, RBlockPlace } from '../../policy/lending/rblock-table.ts';

export class StagedBlocks {
  readonly #outside: OutsideRows;
  readonly #rows = new Map<RBlockId, PageRow>();
  /** They have a place at home, which has not taken their contents in. */
  #placed: RBlockId[] = [];
  /** Rows that nobody wants: a step that is planned may still name them. */
  #dropped: PageRow[] = [];

  constructor(outside: OutsideRows) {
    this.#outside = outside;
  }

  rowOf(rblock: RBlockId): PageRow | undefined {
    return this.#rows.get(rblock);
  }

  /** A row of the buffer for contents that come. */
  add(rblock: RBlockId): PageRow {
    const row = this.#outside.stage();
    this.#rows.set(rblock, row);
    return row;
  }

  /** Is there room for so many more? */
  hasRoom(blocks: number): boolean {
    return this.#outside.freeStaged >= blocks;
  }

  /** What is there of it is of no use any more. */
  drop(rblock: RBlockId): void {
    const row = this.#rows.get(rblock);
    if (row === undefined) return;
    this.#dropped.push(row);
    this.#rows.delete(rblock);
  }

  placed(rblock: RBlockId): void {
    this.#placed.push(rblock);
  }

  /** No step is in flight: what was staged lies at its place from now on. */
  takeIn(find: (rblock: RBlockId) => RBlockPlace | undefined): void {
    for (const row of this.#dropped.splice(0)) this.#outside.unstage(row);
    for (const rblock of this.#placed) {
      const row = this.#rows.get(rblock);
      const place = find(rblock);
      if (row === undefined || place?.kind !== 'home') continue;
      if (place.memory === 'host') this.#outside.unstage(row);
      else this.#outside.settle(row, place.block);
      this.#rows.delete(rblock);
    }
    this.#placed = [];
  }

  /** Throws unless the buffer holds these and nothing else. */
  check(): void {
    const known = this.#rows.size + this.#dropped.length;
    if (known !== this.#outside.staged)
      throw new Error(`Borrower broken: ${this.#outside.staged} blocks are staged, ${known} are known`);
  }
}
