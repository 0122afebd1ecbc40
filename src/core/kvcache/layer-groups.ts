// How many blocks a sequence requires of each layer group: window arithmetic, in blocks and pages.
import type { LayerGroup } from '../../util/step.ts';

/** Blocks that hold `tokens` tokens. */
export function blocksFor(tokens: number, blockTokens: number): number {
  return Math.ceil(tokens / blockTokens);
}

/** Index of the first block that a row at `position` attends to; no later row attends to an earlier block. */
export function firstBlockAttended(window: number | undefined, position: number, blockTokens: number): number {
  return window === undefined ? 0 : Math.floor(Math.max(0, position - window + 1) / blockTokens);
}

/**
 * Maximum number of blocks that `rows` rows of one step attend to, wherever they start: those of window + rows - 1
 * positions.
 */
export function blocksAttendedMax(window: number | undefined, rows: number, blockTokens: number): number {
  return window === undefined ? Number.POSITIVE_INFINITY : Math.ceil((window + rows - 2) / blockTokens) + 1;
}

/** Pages of one block over all groups. */
export function blockPages(groups: readonly LayerGroup[]): number {
  return groups.reduce((sum, { layers }) => sum + layers, 0);
}

/** Maximum number of pages of a sequence of `tokens` tokens that is computed in chunks of a block. */
export function pagesFor(groups: readonly LayerGroup[], tokens: number, blockTokens: number): number {
  const blocks = blocksFor(tokens, blockTokens);
  const held = (window: number | undefined) => Math.min(blocks, blocksAttendedMax(window, 1, blockTokens));
  return groups.reduce((sum, { layers, window }) => sum + layers * held(window), 0);
}

/** Length of the longest sequence that `pages` pages hold; infinite if every group has a window and the windows fit. */
export function capacityTokens(groups: readonly LayerGroup[], pages: number, blockTokens: number): number {
  if (pagesFor(groups, Number.POSITIVE_INFINITY, blockTokens) <= pages) return Number.POSITIVE_INFINITY;
  let blocks = 0;
  let tooMany = pages + 1;
  while (tooMany - blocks > 1) {
    const middle = Math.floor((blocks + tooMany) / 2);
    if (pagesFor(groups, middle * blockTokens, blockTokens) <= pages) blocks = middle;
    else tooMany = middle;
  }
  return blocks * blockTokens;
}
