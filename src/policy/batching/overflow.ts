// Memory beyond an instance's own, as its batcher sees it: blocks that move there make room at home.
import type { Sequence } from './sequence.ts';

/** `coming`: room is being made; `none`: from others who run, if at all; `hopeless`: it has waited too long and is to let go of all it has. */
export type Relief = 'coming' | 'none' | 'hopeless';

export interface Overflow {
  /** Pages elsewhere that blocks of sequences can go to. */
  readonly pagesInHand: number;
  /** The sequence lacks a block, and no cached one is left. */
  relieve(sequence: Sequence): Relief;
  /** The sequence lets go of whatever it has elsewhere. */
  release(sequence: Sequence): void;
}
