// Contents that settlements bring home, in the staging buffer until the next step may find them in memory at home.

import type { ExtraPageRows } from '../../kvcache/extra-page-rows.ts';
import type { BlockId, PageRow, RBlockId } from '../../protocol/ids.ts';
import type { RBlockPlace } from '../rblock-table.ts';
import type { BorrowerEffectSink } from './block-moves.ts';

export class StagedBlocks {
  readonly #extraRows: ExtraPageRows;
  readonly #sink: BorrowerEffectSink;
  readonly #rows = new Map<RBlockId, PageRow>();
  /** rBlocks with memory at home whose contents are still in the buffer. */
  #placed: RBlockId[] = [];
  /** Discarded rows that the step in flight may still read. */
  #discarded: PageRow[] = [];

  constructor(extraRows: ExtraPageRows, sink: BorrowerEffectSink) {
    this.#extraRows = extraRows;
    this.#sink = sink;
  }

  rowOf(rblock: RBlockId): PageRow | undefined {
    return this.#rows.get(rblock);
  }

  /** Allocates a row of the buffer for the contents of the rBlock. */
  add(rblock: RBlockId): PageRow {
    const row = this.#extraRows.stage();
    this.#rows.set(rblock, row);
    return row;
  }

  /** True if the buffer has `blocks` free rows. */
  hasRoom(blocks: number): boolean {
    return this.#extraRows.free >= blocks;
  }

  /** Discards the staged contents. */
  discard(rblock: RBlockId): void {
    const row = this.#rows.get(rblock);
    if (row === undefined) return;
    this.#discarded.push(row);
    this.#rows.delete(rblock);
  }

  placed(rblock: RBlockId): void {
    this.#placed.push(rblock);
  }

  /** Moves the contents of placed rBlocks to their memory at home. No step is in flight. */
  applyPlaced(find: (rblock: RBlockId) => RBlockPlace | undefined): void {
    for (const row of this.#discarded.splice(0)) this.#extraRows.unstage(row);
    for (const rblock of this.#placed) {
      const row = this.#rows.get(rblock);
      const place = find(rblock);
      if (row === undefined || place?.kind !== 'home') continue;
      if (place.memory === 'host') this.#toHost(row, place.block);
      else this.#extraRows.takeStaged(row, place.block);
      this.#rows.delete(rblock);
    }
    this.#placed = [];
  }

  #toHost(row: PageRow, block: BlockId): void {
    const to = this.#extraRows.hostRow(block);
    if (to !== undefined)
      this.#sink.emit({ kind: 'copyHome', from: this.#extraRows.pagesOf(row), to: this.#extraRows.pagesOf(to) });
    this.#extraRows.unstage(row);
  }

  /** Throws unless the buffer holds exactly these rows. */
  check(): void {
    const expected = this.#rows.size + this.#discarded.length;
    if (expected !== this.#extraRows.staged)
      throw new Error(`Borrower broken: ${this.#extraRows.staged} rows are staged, ${expected} are expected`);
  }
}
