// Locations of blocks that are in no table, in the terms of copies and steps.
import type { ExtraPageRows } from '../../kvcache/extra-page-rows.ts';
import type { InstanceIndex, RBlockId } from '../../protocol/ids.ts';
import type { RBlockPlace } from '../rblock-table.ts';
import { type BlockLocation, lentName } from './block-moves.ts';
import type { StagedBlocks } from './staged-blocks.ts';

/** Knows the current place of each rBlock. */
export interface RBlockFinder {
  find(rblock: RBlockId): RBlockPlace | undefined;
}

export class BlockLocator {
  readonly #instance: InstanceIndex;
  readonly #outside: ExtraPageRows;
  readonly #staged: StagedBlocks;
  readonly #rblocks: RBlockFinder;

  constructor(instance: InstanceIndex, outside: ExtraPageRows, staged: StagedBlocks, rblocks: RBlockFinder) {
    this.#instance = instance;
    this.#outside = outside;
    this.#staged = staged;
    this.#rblocks = rblocks;
  }

  of(rblock: RBlockId): BlockLocation {
    const instance = this.#instance;
    const place = this.#rblocks.find(rblock);
    if (place?.kind === 'remote') return { instance: place.instance, at: lentName(place.memory, place.block) };
    if (place?.kind === 'home' && place.memory === 'host')
      return { instance, at: this.#outside.host(place.block) ?? place.block };
    const row = place?.kind === 'home' ? this.#outside.local(place.block) : this.#staged.rowOf(rblock);
    if (row === undefined) throw new Error(`Borrower broken: rBlock ${rblock} is nowhere`);
    return { instance, at: row };
  }

  /** A row of the staging buffer for incoming contents. */
  stage(rblock: RBlockId): BlockLocation {
    return { instance: this.#instance, at: this.#staged.add(rblock) };
  }
}
