// How a step finds the blocks of a sequence that lie outside its table: rows of the page table at home, or blocks of creditors.

import { away as elsewhere } from '../../../util/step.ts';
import type { BlockId, InstanceIndex } from '../../protocol/ids.ts';
import type { BlockLocation } from './block-moves.ts';

/** Ranges that follow one another at one creditor. */
export interface RemoteBlocks {
  readonly creditor: InstanceIndex;
  /** Index in the sequence. */
  readonly firstBlock: number;
  readonly blocks: readonly BlockId[];
}

export interface RemoteLayout {
  /** The first block that is not in the table; those that are come before it and behind the last of these. */
  readonly firstBlock: number;
  /** Rows of the page table; `away` where it is at a creditor. */
  readonly rows: Int32Array;
  readonly remote: readonly RemoteBlocks[];
}

/** @param sites of the blocks from `firstBlock` on */
export function remoteLayout(own: InstanceIndex, firstBlock: number, sites: readonly BlockLocation[]): RemoteLayout {
  const rows = new Int32Array(sites.length).fill(elsewhere);
  const remote: { creditor: InstanceIndex; firstBlock: number; blocks: BlockId[] }[] = [];
  let last: InstanceIndex = own;
  for (const [i, { instance, at }] of sites.entries()) {
    if (instance === own) rows[i] = at;
    else if (instance === last) remote[remote.length - 1].blocks.push(at);
    else remote.push({ creditor: instance, firstBlock: firstBlock + i, blocks: [at] });
    last = instance;
  }
  return { firstBlock, rows, remote };
}
