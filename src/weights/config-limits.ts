// Upper bounds of configuration values, and helpers that both configuration formats share.
import type { Positions } from '../util/model-config.ts';
import type { GenerationDefaults } from './types.ts';

/** Largest accepted width, head count, position count or vocabulary size. */
export const sizeMax = 2 ** 28;

/** The graph is built layer by layer before any tensor is read, so a corrupt layer count must not make that slow. */
export const layersMax = 4096;

/** Positions after YaRN scaling; 0 without YaRN. Files with added YaRN settings may still name the original count. */
export function extendedPositions(positions: Positions): number {
  if (positions.kind !== 'rope' || positions.rope.scaling.kind !== 'yarn') return 0;
  const { factor, originalMaxPositions } = positions.rope.scaling;
  return Math.min(Math.floor(factor * originalMaxPositions), sizeMax);
}

type Loose<T> = { readonly [Key in keyof T]-?: undefined extends T[Key] ? T[Key] | undefined : T[Key] };

/** Drops the settings that a file leaves out. */
export function withoutUndefined(
  defaults: Loose<GenerationDefaults> & { readonly eosIds: readonly number[] },
): GenerationDefaults {
  const set = Object.entries(defaults).filter(([, value]) => value !== undefined);
  return { ...Object.fromEntries(set), eosIds: defaults.eosIds };
}
