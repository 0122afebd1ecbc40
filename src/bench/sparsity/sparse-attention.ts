// Attention of a sequence's rows after the prompt over chosen keys of the prompt, in plain TypeScript.
import { Prng } from '../../util/prng.ts';
import { pageTokens } from '../../util/step.ts';
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

/** By KV head: the keys with the highest scores before the recent window, and that window. */
export function keepScored(scores: readonly Float64Array[], promptTokens: number, budget: number): Int32Array[] {
  const recent = promptTokens - scores[0].length;
  return scores.map((head) => withRecent(topIndices(head, budget - recent), promptTokens, recent));
}

function withRecent(kept: Int32Array, promptTokens: number, recent: number): Int32Array {
  return Int32Array.of(...kept, ...positionRange(promptTokens - recent, promptTokens - 1));
}

/** Pages of the prompt with the highest bound of a query head on the products with their keys (Quest). */
export function chooseQuest(keys: LayerKeys, promptTokens: number, budget: number, headDim: number): ChooseKeys {
  const bounds = keys.keys.map((head) => pageBounds(head, promptTokens, headDim));
  const pages = Math.ceil(promptTokens / pageTokens);
  const count = Math.max(2, Math.round(budget / pageTokens));
  const memory = new WeakMap<QueryRows, (Int32Array | undefined)[]>();
  return (queries, row, head) => {
    const { heads, kvHeads } = queries.op;
    const shared = heads / kvHeads;
    const kvHead = Math.floor(head / shared);
    const known = memory.get(queries) ?? [];
    memory.set(queries, known);
    const chosen =
      known[row * kvHeads + kvHead] ??
      pageKeys(boundsOf(queries, row, kvHead * shared, shared, bounds[kvHead], pages), count, promptTokens);
    known[row * kvHeads + kvHead] = chosen;
    return chosen;
  };
}

interface PageBounds {
  /** (pages, headDim) each */
  readonly least: Float32Array;
  readonly most: Float32Array;
}

function pageBounds(keys: Float32Array, tokens: number, headDim: number): PageBounds {
  const pages = Math.ceil(tokens / pageTokens);
  const least = new Float32Array(pages * headDim).fill(Infinity);
  const most = new Float32Array(pages * headDim).fill(-Infinity);
  for (let position = 0; position < tokens; position++) {
    const page = Math.floor(position / pageTokens) * headDim;
    for (let d = 0; d < headDim; d++) {
      const value = keys[position * headDim + d];
      least[page + d] = Math.min(least[page + d], value);
      most[page + d] = Math.max(most[page + d], value);
    }
  }
  return { least, most };
}

/** (pages): the highest bound over the query heads of a KV head. */
function boundsOf(
  { op, query }: QueryRows,
  row: number,
  firstHead: number,
  heads: number,
  { least, most }: PageBounds,
  pages: number,
): Float64Array {
  const result = new Float64Array(pages).fill(-Infinity);
  for (let head = firstHead; head < firstHead + heads; head++) {
    const from = (row * op.heads + head) * op.headDim;
    for (let page = 0; page < pages; page++) {
      let sum = 0;
      for (let d = 0; d < op.headDim; d++) {
        const q = query[from + d];
        sum += Math.max(q * least[page * op.headDim + d], q * most[page * op.headDim + d]);
      }
      result[page] = Math.max(result[page], sum);
    }
  }
  return result;
}

/** The keys of the first page, of the last one, and of those with the highest bounds. */
function pageKeys(bounds: Float64Array, count: number, promptTokens: number): Int32Array {
  bounds[0] = Infinity;
  bounds[bounds.length - 1] = Infinity;
  const keys = [...topIndices(bounds, count)].flatMap((page) => [
    ...positionRange(page * pageTokens, Math.min(promptTokens, (page + 1) * pageTokens) - 1),
  ]);
  return Int32Array.from(keys);
}
