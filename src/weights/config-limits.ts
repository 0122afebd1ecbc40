// Bounds that no honest configuration exceeds, and what both kinds of configuration share.
import type { Positions } from '../util/model-config.ts';
import type { GenerationDefaults } from './types.ts';

/** Largest width, count of heads or positions, or vocabulary. */
export const sizeMax = 2 ** 28;

/** A graph is built layer by layer before a tensor is looked at: a claim must not make that long. */
export const layersMax = 4096;

/** Positions that YaRN makes of those of the first training, which files that it was added to may still name; 0 without it. */
export function stretchedPositions(positions: Positions): number {
  if (positions.kind !== 'rope' || positions.rope.scaling.kind !== 'yarn') return 0;
  const { factor, originalMaxPositions } = positions.rope.scaling;
  return Math.min(Math.floor(factor * originalMaxPositions), sizeMax);
}

type Loose<T> = { readonly [Key in keyof T]-?: undefined extends T[Key] ? T[Key] | undefined : T[Key] };

/** Leaves out what a file does not set. */
export function withoutUndefined(
  defaults: Loose<GenerationDefaults> & { readonly eosIds: readonly number[] },
): GenerationDefaults {
  const set = Object.entries(defaults).filter(([, value]) => value !== undefined);
  return { ...Object.fromEntries(set), eosIds: defaults.eosIds };
}
