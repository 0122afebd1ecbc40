// Length distributions of prompts and outputs.
import { assertNever } from '../../util/assert-never.ts';
import { exactExp, exactLog } from '../../util/exact-math.ts';
import type { Prng } from '../../util/prng.ts';

/** Tokens, at least 1. */
export type Lengths =
  | { readonly kind: 'fixed'; readonly tokens: number }
  /** Uniform over the integers of [min, max]. */
  | { readonly kind: 'uniform'; readonly min: number; readonly max: number }
  /** `variation` is the coefficient of variation. */
  | { readonly kind: 'log-normal'; readonly mean: number; readonly variation: number };

/** Prompt and output, independent of each other. */
export interface DrawnLengths {
  readonly kind: 'drawn';
  readonly input: Lengths;
  readonly output: Lengths;
}

/** Measured pairs: prompt and output of a request are drawn together. */
export interface LengthTable {
  readonly kind: 'table';
  /** (pairs) */
  readonly input: Int32Array;
  readonly output: Int32Array;
}

const pattern = /^(?<first>\d+)(?:\.\.(?<last>\d+)|~(?<variation>\d+(?:\.\d+)?))?$/;

/** '512': fixed; '100..900': uniform; '8000~0.6': log-normal with that mean and variation. Undefined: invalid. */
export function parseLengths(text: string): Lengths | undefined {
  const { first, last, variation } = pattern.exec(text.trim())?.groups ?? {};
  const tokens = Number(first);
  if (!(tokens >= 1 && tokens < 2 ** 31)) return undefined;
  if (variation !== undefined) return { kind: 'log-normal', mean: tokens, variation: Number(variation) };
  if (last === undefined) return { kind: 'fixed', tokens };
  const max = Number(last);
  return max >= tokens && max < 2 ** 31 ? { kind: 'uniform', min: tokens, max } : undefined;
}

/** Returns a function that draws one length. */
export function drawer(lengths: Lengths, prng: Prng): () => number {
  switch (lengths.kind) {
    case 'fixed':
      return () => lengths.tokens;
    case 'uniform':
      return () => prng.integer(lengths.min, lengths.max);
    case 'log-normal': {
      const variance = exactLog(1 + lengths.variation * lengths.variation);
      const middle = exactLog(lengths.mean) - variance / 2;
      const deviation = Math.sqrt(variance);
      return () => Math.max(1, Math.round(exactExp(middle + deviation * prng.normal())));
    }
    default:
      return assertNever(lengths);
  }
}

export function meanOf(lengths: Lengths): number {
  if (lengths.kind === 'fixed') return lengths.tokens;
  return lengths.kind === 'uniform' ? (lengths.min + lengths.max) / 2 : lengths.mean;
}
