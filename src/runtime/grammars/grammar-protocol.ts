// Messages between the owner of a grammar thread and that thread, and the memory in which masks are returned.

import type { Grammar } from '../../core/protocol/grammar.ts';

/** A number that stands for a grammar between an owner and its thread. */
export type GrammarNumber = number;

/** A row that requires a mask. */
export interface MaskRequest {
  readonly request: string;
  readonly grammar: GrammarNumber;
  /** Output tokens that the owner has sent before; 0: the matcher starts anew. */
  readonly from: number;
  /** Output tokens from there on. */
  readonly tokens: Int32Array;
}

export type ToGrammarThread =
  /** Answered with `compiled`. `keeps`: matchers of it will follow. */
  | { readonly kind: 'compile'; readonly number: GrammarNumber; readonly grammar: Grammar; readonly keeps: boolean }
  /** Reads the vocabulary before the first grammar; answered with `loaded`. */
  | { readonly kind: 'load' }
  /** Answered in the shared memory: masks and states of at most `rowsMax` rows, then the number of the batch. */
  | { readonly kind: 'masks'; readonly batch: number; readonly rows: readonly MaskRequest[] }
  | { readonly kind: 'release'; readonly request: string };

export type FromGrammarThread =
  | { readonly kind: 'compiled'; readonly number: GrammarNumber; readonly fault: string | undefined }
  | { readonly kind: 'loaded' };

/** State of a row of a batch: its mask is valid; the thread lacks its grammar or its matcher; its output contradicts the grammar. */
export const maskStates = { ready: 1, unknown: 2, contradiction: 3 } as const;

/** Memory that an owner shares with its thread. */
export interface MaskMemory {
  /** (1 + rowsMax): number of the last batch, then the state of each of its rows. */
  readonly control: Int32Array;
  /** (rowsMax, words) */
  readonly masks: Int32Array;
}

export function createMaskMemory(rowsMax: number, words: number): MaskMemory {
  const shared = (length: number) => new Int32Array(new SharedArrayBuffer(length * Int32Array.BYTES_PER_ELEMENT));
  return { control: shared(1 + rowsMax), masks: shared(rowsMax * words) };
}

/** The workerData of a grammar thread. */
export interface GrammarThreadData {
  /** Path of the model. */
  readonly model: string;
  readonly memory: MaskMemory | undefined;
}
