// Softmax weights of queries over the keys of a layer, in plain TypeScript.
import type { AttentionOp, LayerKeys } from './layered-model.ts';

/** Queries of consecutive rows of a layer. */
export interface QueryRows {
  readonly op: Pick<AttentionOp, 'heads' | 'kvHeads' | 'headDim' | 'scale' | 'softcap' | 'window'>;
  /** Position of the first row. */
  readonly start: number;
  readonly rows: number;
  /** (rows, heads, headDim) */
  readonly query: Float32Array;
}

/** Scaled products of a row's query with the keys at `positions`, soft-capped as the model's. */
export function scoresAt(
  { op, query }: QueryRows,
  row: number,
  head: number,
  { keys }: LayerKeys,
  positions: Int32Array,
): Float64Array {
  const { heads, kvHeads, headDim, scale, softcap } = op;
  const from = (row * heads + head) * headDim;
  const layerKeys = keys[Math.floor(head / (heads / kvHeads))];
  const scores = new Float64Array(positions.length);
  for (let i = 0; i < positions.length; i++) {
    const at = positions[i] * headDim;
    let sum = 0;
    for (let d = 0; d < headDim; d++) sum += query[from + d] * layerKeys[at + d];
    scores[i] = softcap === undefined ? scale * sum : softcap * Math.tanh((scale * sum) / softcap);
  }
  return scores;
}

/** Softmax in place. */
export function softmax(scores: Float64Array): Float64Array {
  let max = -Infinity;
  for (const score of scores) if (score > max) max = score;
  let sum = 0;
  for (let i = 0; i < scores.length; i++) {
    scores[i] = Math.exp(scores[i] - max);
    sum += scores[i];
  }
  for (let i = 0; i < scores.length; i++) scores[i] /= sum;
  return scores;
}

/** Positions first..last. */
export function positionRange(first: number, last: number): Int32Array {
  return Int32Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
}

/** The first position that a row sees. */
export function firstSeen(window: number | undefined, position: number): number {
  return window === undefined ? 0 : Math.max(0, position - window + 1);
}

/** By head: (positions before the end of the rows) sums over the rows of each key's causal softmax weight. */
export function weightSums(queries: QueryRows, keys: LayerKeys): Float64Array[] {
  const { op, start, rows } = queries;
  return Array.from({ length: op.heads }, (_, head) => {
    const sums = new Float64Array(start + rows);
    for (let row = 0; row < rows; row++) {
      const first = firstSeen(op.window, start + row);
      const weights = softmax(scoresAt(queries, row, head, keys, positionRange(first, start + row)));
      for (let i = 0; i < weights.length; i++) sums[first + i] += weights[i];
    }
    return sums;
  });
}

/** Indices of the `count` highest scores in ascending order; of equal scores the earlier ones. */
export function topIndices(scores: ArrayLike<number>, count: number): Int32Array {
  const order = Array.from({ length: scores.length }, (_, i) => i);
  if (count < scores.length) order.sort((a, b) => scores[b] - scores[a] || a - b);
  return Int32Array.from(order.slice(0, Math.max(0, count))).sort();
}
