// How attention of a model concentrates on few keys, and the full layers and budgets that follow from it.
import { topIndices } from './key-scores.ts';

/** Attention of one query head over the keys of a prompt, summed over its last rows. */
export interface HeadProfile {
  readonly layer: number;
  readonly head: number;
  /** Percent of the attention that falls on the top 5, 10 and 25 % of the keys. */
  readonly top5: number;
  readonly top10: number;
  readonly top25: number;
  /** The positions with the most attention, descending. */
  readonly positions: readonly number[];
}

export interface LayerProfile extends Omit<HeadProfile, 'head' | 'positions'> {
  /** Percent of the keys that the mean query head needs for the requested share of its attention. */
  readonly needed: number;
  /** The positions with the most attention of all heads, descending. */
  readonly positions: readonly number[];
}

export interface SparsityProfile {
  readonly heads: readonly HeadProfile[];
  readonly layers: readonly LayerProfile[];
  /** The first layers that need more keys than the mean layer. */
  readonly fullLayers: number;
  /** By sparse layer: percent of the keys that it needs. */
  readonly budgets: readonly number[];
}

/** Most attended positions that a profile lists. */
const positionsListed = 5;

/** Share of the sum in the highest `share` of the values, at least one; 0..1. */
export function concentration(sorted: Float64Array, share: number): number {
  const count = Math.max(1, Math.round(share * sorted.length));
  return total(sorted.subarray(0, count)) / total(sorted);
}

/** How many of the highest values make `mass` of the sum. */
export function valuesForMass(sorted: Float64Array, mass: number): number {
  const wanted = mass * total(sorted);
  let sum = 0;
  let count = 0;
  while (count < sorted.length && sum < wanted) sum += sorted[count++];
  return count;
}

/** @param weights by prompt, layer and head: attention that each key gets @param mass share of the attention that a sparse layer should keep, 0..1 */
export function profileOf(weights: readonly (readonly Float64Array[])[][], mass: number): SparsityProfile {
  const layers = weights[0].length;
  const heads = Array.from({ length: layers }, (_, layer) =>
    weights[0][layer].map((_head, head) =>
      headProfile(
        weights.map((prompt) => prompt[layer][head]),
        layer,
        head,
        mass,
      ),
    ),
  );
  const byLayer = heads.map((all, layer): LayerProfile => {
    const mean = (value: (profile: (typeof all)[number]) => number) => round(total(all.map(value)) / all.length);
    return {
      layer,
      top5: mean(({ top5 }) => top5),
      top10: mean(({ top10 }) => top10),
      top25: mean(({ top25 }) => top25),
      needed: mean(({ needed }) => needed),
      positions: mostAttended(weights[0][layer]),
    };
  });
  const needed = byLayer.map((layer) => layer.needed);
  const fullLayers = leadingAbove(needed, total(needed) / layers);
  return {
    heads: heads.flat().map(({ needed: _, ...profile }) => profile),
    layers: byLayer,
    fullLayers,
    budgets: needed.slice(fullLayers),
  };
}

function headProfile(
  prompts: readonly Float64Array[],
  layer: number,
  head: number,
  mass: number,
): HeadProfile & { readonly needed: number } {
  const sorted = prompts.map((sums) => sums.toSorted((a, b) => b - a));
  const mean = (value: (sums: Float64Array) => number) => round((100 * total(sorted.map(value))) / sorted.length);
  return {
    layer,
    head,
    top5: mean((sums) => concentration(sums, 0.05)),
    top10: mean((sums) => concentration(sums, 0.1)),
    top25: mean((sums) => concentration(sums, 0.25)),
    needed: mean((sums) => valuesForMass(sums, mass) / sums.length),
    positions: mostAttended([prompts[0]]),
  };
}

function mostAttended(heads: readonly Float64Array[]): number[] {
  const sums = heads[0].map((_, position) => total(heads.map((head) => head[position])));
  return [...topIndices(sums, positionsListed)].sort((a, b) => sums[b] - sums[a] || a - b);
}

/** Leading values above a bound; not all of them. */
function leadingAbove(values: readonly number[], bound: number): number {
  const first = values.findIndex((value) => value <= bound);
  return first === -1 ? values.length - 1 : first;
}

function total(values: Iterable<number>): number {
  let sum = 0;
  for (const value of values) sum += value;
  return sum;
}

function round(value: number): number {
  return Math.round(10 * value) / 10;
}
