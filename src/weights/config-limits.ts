// Bounds that no honest configuration exceeds, and what both kinds of configuration share.
import type { GenerationDefaults } from './types.ts';

/** Largest width, count of heads or positions, or vocabulary. */
export const sizeMax = 2 ** 28;

/** A graph is built layer by layer before a tensor is looked at: a claim must not make that long. */
export const layersMax = 4096;

type Loose<T> = { readonly [Key in keyof T]-?: undefined extends T[Key] ? T[Key] | undefined : T[Key] };

/** Leaves out what a file does not set. */
export function withoutUndefined(
  defaults: Loose<GenerationDefaults> & { readonly eosIds: readonly number[] },
): GenerationDefaults {
  const set = Object.entries(defaults).filter(([, value]) => value !== undefined);
  return { ...Object.fromEntries(set), eosIds: defaults.eosIds };
}
