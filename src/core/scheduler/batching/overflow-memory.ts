// Memory beyond an instance's own, as its batcher sees it: blocks that move there make room at home.
import type { Sequence } from './sequence.ts';

/** `coming`: room is being made; `none`: from others who run, if at all. */
export type Relief = 'coming' | 'none';

/** Blocks `firstBlock..firstBlock + blocks` of a sequence. */
export interface KeptBlocks {
  readonly firstBlock: number;
  readonly blocks: number;
}

export interface OverflowMemory {
  /** What no memory here could hold is promised all that it may come to before it starts, here or elsewhere. */
  readonly gathers: boolean;
  /** Pages elsewhere that blocks of sequences can go to. */
  readonly pagesInHand: number;
  /** Of what a sequence needs that the memory here could not hold, pages that may be lost because only whole ranges move. */
  readonly slackPages: number;
  /** May it be let in if there is room? Not while memory is held for others, and what no instance could hold only in its turn. */
  admits(sequence: Sequence): boolean;
  /** The sequence lacks a block, and no cached one is left. */
  relieve(sequence: Sequence): Relief;
  /** Of a prompt that no memory here could hold, what lies elsewhere since a request ended that began likewise: neither computed again nor gathered for. */
  kept(sequence: Sequence): KeptBlocks | undefined;
  /** It starts with that: what comes before is in its table then. Returns the blocks that it need not compute. */
  takeKept(sequence: Sequence): number;
  /** The sequence lets go of whatever it has elsewhere. @param ended its request is over: others may begin likewise */
  release(sequence: Sequence, ended: boolean): void;
}
