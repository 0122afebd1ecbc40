// The pages that a stream of a hand-off sends, and their slots in the receive buffer.

import type { LayerGroup } from '../../../util/step.ts';
import { pageTokens, type SlotTable } from '../../../util/step.ts';
import { ReceiveLayout } from '../../kvcache/receive-pages.ts';
import { StagePages } from '../../kvcache/stage-pages.ts';
import type { InstanceEffect } from '../../protocol/effects.ts';

export type Stream = Extract<InstanceEffect, { kind: 'stream' }>;

/** A layer of the model: its group, and its index there. */
export interface LayerPlace {
  readonly group: number;
  readonly index: number;
}

/** (blocks, layers): pages of the blocks of a group. */
interface PageTable {
  readonly layers: number;
  readonly pageTable: Int32Array;
}

/** The shape of the model, the same at both ends. `layers`: in the order of computation. */
export interface PageShape {
  readonly groups: readonly LayerGroup[];
  readonly layers: readonly LayerPlace[];
}

/**
 * (descriptors, 3): layer in the order of computation, page of the sender, slot of the receive buffer. Layer by layer, in whole pages,
 * including pages that are filled later. Groups with a window send only the blocks that the first output token attends to. Layers of a range
 * are numbered from its first. Kept tokens are sent with the start of the prompt, once all of it is computed.
 */
export function pageDescriptorsOf(
  { from, tokens, promptTokens, table, range }: Pick<Stream, 'from' | 'tokens' | 'promptTokens' | 'table' | 'range'>,
  { groups, layers }: PageShape,
  pools: readonly PageTable[],
): Int32Array {
  const { slots } = table;
  const layout = new ReceiveLayout(groups, promptTokens, pageTokens, layoutOf(slots));
  // A full page, or the last one of the prompt, is not sent again.
  const end = tokens === 0 ? 0 : Math.ceil((from + tokens) / pageTokens);
  const descriptors: number[] = [];
  if (range !== undefined) {
    const pages = new StagePages(table.groups[0], pools[0], range);
    for (let layer = pages.from; layer < pages.to; layer++)
      for (let block = Math.floor(from / pageTokens); block < end; block++)
        descriptors.push(layer - pages.from, pages.page(block, layer), layout.indexOf(0, block, layer));
    return Int32Array.from(descriptors);
  }
  for (const [layer, { group, index }] of layers.entries()) {
    const { layers: width, pageTable } = pools[group];
    const { first, blocks } = table.groups[group];
    if (from === 0 && slots !== undefined && groups[group].sparse) {
      const { pages, pageStart } = slots;
      for (let page = pageStart[index]; page < pageStart[index + 1]; page++)
        descriptors.push(layer, pages[page], layout.slotIndex(page));
    }
    for (let block = Math.max(Math.floor(from / pageTokens), layout.first(group)); block < end; block++) {
      const page = pageTable[blocks.at(block - first) * width + index];
      descriptors.push(layer, page, layout.indexOf(group, block, index));
    }
  }
  if (from === 0 && slots !== undefined)
    for (const [i, page] of slots.states.entries())
      descriptors.push(layers.length - 1, page, layout.slotIndex(slots.pages.length + i));
  return Int32Array.from(descriptors);
}

function layoutOf(slots: SlotTable | undefined) {
  return slots && { pageStart: slots.pageStart, statePages: slots.states.length };
}

/** Those of the pages that are not full: they may be written while they are sent, and are then sent again. */
export function fillingPages(
  stream: Pick<Stream, 'from' | 'tokens' | 'promptTokens' | 'table' | 'range'>,
  shape: PageShape,
  pools: readonly PageTable[],
): Int32Array {
  const end = stream.from + stream.tokens;
  const tokens = stream.tokens === 0 ? 0 : end % pageTokens;
  return pageDescriptorsOf({ ...stream, from: end - tokens, tokens }, shape, pools).filter((_, i) => i % 3 === 1);
}
