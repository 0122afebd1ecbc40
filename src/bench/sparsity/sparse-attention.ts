// Attention of a sequence's rows after the prompt over chosen keys of the prompt, in plain TypeScript.
import { Prng } from '../../util/prng.ts';
import { firstSeen, positionRange, type QueryRows, scoresAt, softmax, topIndices } from './key-scores.ts';
import type { AttentionCall, LayerKeys } from './layered-model.ts';

/** The keys of the prompt that a row's head reads in one layer, ascending. */
export type ChooseKeys = (queries: QueryRows, row: number, head: number) => Int32Array;

/** (rows, heads, headDim): attention over the chosen keys of the prompt and all keys from its end on. */
export function attendChosen(call: AttentionCall, keys: LayerKeys, promptTokens: number, choose: ChooseKeys) {
  const { op, start, rows } = call;
  const { heads, kvHeads, headDim } = op;
  const out = new Float32Array(call.query.length);
  for (let row = 0; row < rows; row++) {
    const position = start + row;
    const first = firstSeen(op.window, position);
    const recent = positionRange(Math.max(first, promptTokens), position);
    for (let head = 0; head < heads; head++) {
      const chosen = choose(call, row, head);
      const seen = Int32Array.of(...chosen.subarray(lowerBound(chosen, first)), ...recent);
      const weights = softmax(scoresAt(call, row, head, keys, seen));
      const values = keys.values[Math.floor(head / (heads / kvHeads))];
      const sums = new Float64Array(headDim);
      for (let i = 0; i < seen.length; i++) {
        const at = seen[i] * headDim;
        for (let d = 0; d < headDim; d++) sums[d] += weights[i] * values[at + d];
      }
      out.set(sums, (row * heads + head) * headDim);
    }
  }
  return out;
}

/** The first index with a value of at least `least`. */
function lowerBound(ascending: Int32Array, least: number): number {
  const index = ascending.findIndex((value) => value >= least);
  return index === -1 ? ascending.length : index;
}

/** The same keys for all rows: those kept by each KV head. */
export function chooseKept(kept: readonly Int32Array[]): ChooseKeys {
  return ({ op }, _row, head) => kept[Math.floor(head / (op.heads / op.kvHeads))];
}

/** The keys of the prompt with the highest products, exactly: the ceiling of any selection by query. */
export function chooseOracle(keys: LayerKeys, promptTokens: number, budget: number): ChooseKeys {
  const all = positionRange(0, promptTokens - 1);
  return (queries, row, head) => topIndices(scoresAt(queries, row, head, keys, all), budget);
}

/** The last `budget` keys of the prompt. */
export function keepWindow(promptTokens: number, budget: number, kvHeads: number): Int32Array[] {
  const kept = positionRange(promptTokens - Math.min(budget, promptTokens), promptTokens - 1);
  return Array.from({ length: kvHeads }, () => kept);
}

/** The recent window, and keys drawn evenly from those before it, other ones for each KV head. */
export function keepRandom(request: {
  readonly promptTokens: number;
  readonly budget: number;
  readonly recent: number;
  readonly kvHeads: number;
  readonly seed: number;
  readonly layer: number;
}): Int32Array[] {
  const { promptTokens, budget, kvHeads, seed, layer } = request;
  const recent = Math.min(request.recent, budget, promptTokens);
  return Array.from({ length: kvHeads }, (_, kvHead) => {
    const random = new Prng(seed, layer * kvHeads + kvHead);
    const scores = Float64Array.from({ length: promptTokens - recent }, () => random.uniform());
    return withRecent(topIndices(scores, budget - recent), promptTokens, recent);
  });
}

function withRecent(kept: Int32Array, promptTokens: number, recent: number): Int32Array {
  return Int32Array.of(...kept, ...positionRange(promptTokens - recent, promptTokens - 1));
}
