// Where blocks outside block tables lie, as copies and steps address them.

import { remoteBlock } from '../../../util/step.ts';
import type { ExtraPageRows } from '../../kvcache/extra-page-rows.ts';
import type { BlockId, InstanceIndex, RBlockId } from '../../protocol/ids.ts';
import type { RemoteLayout } from '../../scheduler/executor/step-builder.ts';
import type { RBlockPlace } from '../rblock-table.ts';
import { type BlockLocation, lentName } from './block-moves.ts';
import type { StagedBlocks } from './staged-blocks.ts';

/** The current place of each rBlock. */
export interface RBlockPlaces {
  find(rblock: RBlockId): RBlockPlace | undefined;
}

export class BlockLocator {
  readonly #instance: InstanceIndex;
  readonly #extraRows: ExtraPageRows;
  readonly #staged: StagedBlocks;
  readonly #places: RBlockPlaces;

  constructor(instance: InstanceIndex, extraRows: ExtraPageRows, staged: StagedBlocks, places: RBlockPlaces) {
    this.#instance = instance;
    this.#extraRows = extraRows;
    this.#staged = staged;
    this.#places = places;
  }

  of(rblock: RBlockId): BlockLocation {
    const instance = this.#instance;
    const place = this.#places.find(rblock);
    if (place?.kind === 'remote') return { instance: place.instance, at: lentName(place.memory, place.block) };
    if (place?.kind === 'home' && place.memory === 'host')
      return { instance, at: this.#extraRows.hostRow(place.block) ?? place.block };
    const row = place?.kind === 'home' ? this.#extraRows.localRow(place.block) : this.#staged.rowOf(rblock);
    if (row === undefined) throw new Error(`Borrower broken: rBlock ${rblock} has no location`);
    return { instance, at: row };
  }

  /** Allocates a row of the staging buffer for the contents of the rBlock. */
  stage(rblock: RBlockId): BlockLocation {
    return { instance: this.#instance, at: this.#staged.add(rblock) };
  }

  /** How a step finds these blocks, from `firstBlock` of their sequence on: page-table rows at home, runs of blocks at creditors. */
  layoutOf(firstBlock: number, rblocks: readonly RBlockId[]): RemoteLayout {
    const own = this.#instance;
    const rows = new Int32Array(rblocks.length).fill(remoteBlock);
    const remote: { creditor: InstanceIndex; firstBlock: number; blocks: BlockId[] }[] = [];
    let last: InstanceIndex = own;
    for (const [i, rblock] of rblocks.entries()) {
      const { instance, at } = this.of(rblock);
      if (instance === own) rows[i] = at;
      else {
        // At another instance `at` is a block, never a row.
        const block = at as BlockId;
        if (instance === last) remote[remote.length - 1].blocks.push(block);
        else remote.push({ creditor: instance, firstBlock: firstBlock + i, blocks: [block] });
      }
      last = instance;
    }
    return { firstBlock, rows, remote };
  }
}
