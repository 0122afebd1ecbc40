// How a step finds the blocks of a sequence outside its table: rows of the page table at home, or blocks of creditors.

import { remoteBlock as elsewhere } from '../../../util/step.ts';
import type { BlockId, InstanceIndex } from '../../protocol/ids.ts';
import type { RemoteLayout } from '../../scheduler/executor/step-builder.ts';
import type { BlockLocation } from './block-moves.ts';

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
