// The blocks of one sequence, in order of position.
import { Int32List } from '../../util/int32-list.ts';
import { pageTokens } from '../../util/step.ts';

/** Entry i holds positions i*32..i*32+31. The table owns one reference to each block. */
export class BlockTable {
  readonly blocks = new Int32List(8);

  get length(): number {
    return this.blocks.length;
  }

  /** Blocks still missing before `tokens` tokens have room. */
  missing(tokens: number): number {
    return Math.max(0, blocksFor(tokens) - this.length);
  }
}

/** Blocks that hold `tokens` tokens. */
export function blocksFor(tokens: number): number {
  return Math.ceil(tokens / pageTokens);
}
