// Staged blocks: contents on their way home, in the staging buffer until a step may find them at their final place.

import type { ExtraPageRows } from '../../kvcache/extra-page-rows.ts';
import type { BlockId, PageRow, RBlockId } from '../../protocol/ids.ts';
import type { RBlockPlace } from '../rblock-table.ts';
import type { MoveDriver } from './block-moves.ts';

export class StagedBlocks {
  readonly #outside: ExtraPageRows;
  readonly #driver: Pick<MoveDriver, 'copyHome'>;
  readonly #rows = new Map<RBlockId, PageRow>();
  /** Memory at home is assigned, but the contents are not there yet. */
  #placed: RBlockId[] = [];
  /** Unused rows that a planned step may still name. */
  #dropped: PageRow[] = [];

  constructor(outside: ExtraPageRows, driver: Pick<MoveDriver, 'copyHome'>) {
    this.#outside = outside;
    this.#driver = driver;
  }

  rowOf(rblock: RBlockId): PageRow | undefined {
    return this.#rows.get(rblock);
  }

  /** A row of the buffer for incoming contents. */
  add(rblock: RBlockId): PageRow {
    const row = this.#outside.stage();
    this.#rows.set(rblock, row);
    return row;
  }

  /** True if the buffer has room for `blocks` more. */
  hasRoom(blocks: number): boolean {
    return this.#outside.free >= blocks;
  }

  /** Discards the staged contents. */
  drop(rblock: RBlockId): void {
    const row = this.#rows.get(rblock);
    if (row === undefined) return;
    this.#dropped.push(row);
    this.#rows.delete(rblock);
  }

  placed(rblock: RBlockId): void {
    this.#placed.push(rblock);
  }

  /** No step is in flight: from now on staged contents lie at their final place. */
  settle(find: (rblock: RBlockId) => RBlockPlace | undefined): void {
    for (const row of this.#dropped.splice(0)) this.#outside.unstage(row);
    for (const rblock of this.#placed) {
      const row = this.#rows.get(rblock);
      const place = find(rblock);
      if (row === undefined || place?.kind !== 'home') continue;
      if (place.memory === 'host') this.#toHost(row, place.block);
      else this.#outside.takeStaged(row, place.block);
      this.#rows.delete(rblock);
    }
    this.#placed = [];
  }

  #toHost(row: PageRow, block: BlockId): void {
    const to = this.#outside.host(block);
    if (to !== undefined) this.#driver.copyHome(this.#outside.pagesOf(row), this.#outside.pagesOf(to));
    this.#outside.unstage(row);
  }

  /** Throws unless the buffer holds exactly these rows. */
  check(): void {
    const known = this.#rows.size + this.#dropped.length;
    if (known !== this.#outside.staged)
      throw new Error(`Borrower broken: ${this.#outside.staged} blocks are staged, ${known} are known`);
  }
}
