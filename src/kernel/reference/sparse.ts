// Attention of sparse sequences in the reference backend: scoring and selecting kept tokens, attention over slots with
// eviction, and attention over the pages with the highest bounds (Quest).
import {
  type HeadReduce,
  type KvSelection,
  keptOfPrompt,
  type PageSelection,
  pageTokens,
  type SparseKeys,
  type Step,
} from '../../util/step.ts';
import { type AttentionTask, attendHead, headWeights, type PageOf, type ReferencePool } from './attention.ts';
import { finishRow, rowOf } from './buffers.ts';
import { keepTokens, LayerSlots } from './sparse-slots.ts';

/** One attention op of a step with sparse sequences. */
export interface SparseTask {
  readonly task: AttentionTask;
  readonly step: Step;
  readonly pool: ReferencePool;
  /** Index of the layer in its group. */
  readonly layer: number;
}

/** K | V of each row of a sparse sequence, (2, kvHeads, headDim) and rounded, from its qkv op to its attention. */
export type StagedRows = ReadonlyMap<number, Float32Array>;

/** Attention of the rows of a sparse sequence, one after another: each fills a slot, attends and updates the scores. */
export function attendSlots({ task, step, pool, layer }: SparseTask, keys: SparseKeys, staged: StagedRows): void {
  const { compactEvery, decay, headReduce } = keys;
  if (task.slopes !== undefined) throw new RangeError('Cannot run the step: sparse layers have no ALiBi slopes');
  const slots = new LayerSlots(pool, keys.slots, layer);
  const budget = keys.budget[layer];
  const recent = Math.min(keys.recent, budget);
  const end = budget + compactEvery;
  let filled = keys.kept[layer];
  for (let row = step.rowStart[keys.sequence]; row < step.rowStart[keys.sequence + 1]; row++) {
    const position = step.positions[row];
    const keyValue = staged.get(row);
    if (keyValue === undefined) throw new Error(`Cannot run the step: row ${row} has no K and V`);
    for (let head = 0; head < task.kvHeads; head++) {
      const slot = filled < end ? filled : slots.lowest(head, filled, position - recent + 1);
      slots.write(head, slot, keyValue);
      slots.setPosition(head, slot, position);
      slots.setScore(head, slot, 0);
    }
    filled = Math.min(filled + 1, end);
    attendRow(task, row, filled - 1, () => slots.pageOf, pool);
    for (let head = 0; head < task.kvHeads; head++) {
      const weights = groupWeights(task, row, head, filled - 1, slots.pageOf, pool);
      for (let slot = 0; slot < filled; slot++) {
        const weight = reduceHeads(
          weights.map((each) => Math.fround(each[slot])),
          headReduce,
        );
        slots.setScore(head, slot, Math.fround(slots.score(head, slot) * decay) + weight);
      }
    }
    if (compactEvery === 0 || filled < end) continue;
    for (let head = 0; head < task.kvHeads; head++) slots.compact(head, filled, budget, position - recent + 1);
    filled = budget;
  }
}

/** Scores the keys of a sequence with its last rows, and copies the kept tokens to slots. */
export function selectTokens({ task, step, pool, layer }: SparseTask, selection: KvSelection, pageOf: PageOf): void {
  const { sequence, observed, headReduce } = selection;
  const end = step.rowStart[sequence + 1];
  const tokens = step.positions[end - 1] + 1;
  const first = end - Math.min(observed, tokens);
  const slots = new LayerSlots(pool, selection.slots, layer);
  const group = task.heads / task.kvHeads;
  for (let head = 0; head < task.kvHeads; head++) {
    const sums = Array.from({ length: group }, () => new Float64Array(tokens));
    for (let row = first; row < end; row++) {
      const weights = groupWeights(task, row, head, step.positions[row], pageOf, pool);
      for (let i = 0; i < group; i++) for (const [key, weight] of weights[i].entries()) sums[i][key] += weight;
    }
    const scores = Float32Array.from({ length: tokens }, (_, key) =>
      reduceHeads(
        sums.map((sum) => sum[key]),
        headReduce,
      ),
    );
    const kept = keepTokens(scores, keptOfPrompt(tokens, selection.budget[layer]), selection);
    for (const [slot, position] of kept.positions.entries()) {
      slots.copyFrom(pageOf(position), position % pageTokens, head, slot);
      slots.setPosition(head, slot, position);
      slots.setScore(head, slot, kept.scores[slot]);
    }
  }
}

/** Attention of the rows of a sequence, one after another, over the pages with the highest bounds. */
export function attendBoundedPages(
  { task, step, pool, layer }: SparseTask,
  selection: PageSelection,
  layers: number,
  pageOf: PageOf,
): void {
  const bounds = new PageBounds(pool, selection.bounds, layer, layers);
  let bounded = selection.bounded;
  for (let row = step.rowStart[selection.sequence]; row < step.rowStart[selection.sequence + 1]; row++) {
    const position = step.positions[row];
    const last = Math.floor(position / pageTokens);
    for (let block = bounded; block <= last; block++)
      bounds.write(block, pageOf(block * pageTokens), Math.min(pageTokens, position + 1 - block * pageTokens));
    bounded = last;
    const chosen = Array.from({ length: task.kvHeads }, (_, head) => {
      const pageBounds = Array.from({ length: last + 1 }, (_, block) => bounds.bound(task, row, head, block));
      return choosePages(pageBounds, selection, task.scale);
    });
    const end = (pages: Int32Array) => (pages.length - 1) * pageTokens + (position % pageTokens);
    for (let head = 0; head < task.heads; head++) {
      const pages = chosen[Math.floor(head / (task.heads / task.kvHeads))];
      const chosenPageOf: PageOf = (at) => pageOf(pages[Math.floor(at / pageTokens)] * pageTokens);
      attendHead(task, row, head, end(pages), chosenPageOf, pool);
    }
    finishRow(task.out, row);
  }
}

/** The chosen pages, ascending, by the rules of `PageSelection`. */
export function choosePages(
  bounds: readonly number[],
  { budget, topP }: Pick<PageSelection, 'budget' | 'topP'>,
  scale: number,
): Int32Array {
  const last = bounds.length - 1;
  const chosen = new Set([0, last]);
  const ranked = bounds.map((_, page) => page).sort((a, b) => bounds[b] - bounds[a] || a - b);
  const weights = bounds.map((bound) => Math.exp(scale * (bound - bounds[ranked[0]])));
  const wanted = topP < 1 ? topP * weights.reduce((sum, weight) => sum + weight, 0) : Number.POSITIVE_INFINITY;
  let mass = 0;
  for (const page of ranked) {
    if (mass >= wanted) break;
    if (chosen.size >= budget && !chosen.has(page)) break;
    chosen.add(page);
    mass += weights[page];
  }
  return Int32Array.from(chosen).sort();
}

/** Minimum and maximum of the keys of each block of one layer. */
class PageBounds {
  readonly #pool: ReferencePool;
  readonly #pages: Int32Array;
  readonly #layer: number;
  readonly #layers: number;

  constructor(pool: ReferencePool, pages: Int32Array, layer: number, layers: number) {
    this.#pool = pool;
    this.#pages = pages;
    this.#layer = layer;
    this.#layers = layers;
  }

  /** Writes the entry of a block whose first `tokens` keys are present. */
  write(block: number, page: Float32Array, tokens: number): void {
    const { kvHeads, headDim } = this.#pool.spec;
    for (let head = 0; head < kvHeads; head++) {
      const entry = this.#entry(block, head);
      const keys = this.#pool.headStart(0, head);
      for (let i = 0; i < headDim; i++) {
        let min = Infinity;
        let max = -Infinity;
        for (let token = 0; token < tokens; token++) {
          const key = page[keys + token * headDim + i];
          min = Math.min(min, key);
          max = Math.max(max, key);
        }
        entry[i] = min;
        entry[headDim + i] = max;
      }
    }
  }

  /** The highest bound of the query heads of a KV head. */
  bound(task: AttentionTask, row: number, kvHead: number, block: number): number {
    const { headDim } = task;
    const group = task.heads / task.kvHeads;
    const entry = this.#entry(block, kvHead);
    let highest = -Infinity;
    for (let head = kvHead * group; head < (kvHead + 1) * group; head++) {
      const q = rowOf(task.query, row).subarray(head * headDim, (head + 1) * headDim);
      let bound = 0;
      for (let i = 0; i < headDim; i++) bound += Math.max(q[i] * entry[i], q[i] * entry[headDim + i]);
      highest = Math.max(highest, bound);
    }
    return highest;
  }

  #entry(block: number, head: number): Float32Array {
    const { headDim } = this.#pool.spec;
    const page = Math.floor(block / pageTokens) * this.#layers + this.#layer;
    const at = (head * pageTokens + (block % pageTokens)) * 2 * headDim;
    return this.#pool.page(this.#pages[page]).subarray(at, at + 2 * headDim);
  }
}

function attendRow(
  task: AttentionTask,
  row: number,
  position: number,
  pagesOfHead: (head: number) => PageOf,
  pool: ReferencePool,
): void {
  for (let head = 0; head < task.heads; head++) attendHead(task, row, head, position, pagesOfHead(head), pool);
  finishRow(task.out, row);
}

/** The weights p of each query head of a KV head, over keys 0 to `position`. */
function groupWeights(
  task: AttentionTask,
  row: number,
  kvHead: number,
  position: number,
  pageOf: PageOf,
  pool: ReferencePool,
): readonly Float64Array[] {
  const group = task.heads / task.kvHeads;
  return Array.from({ length: group }, (_, i) => {
    const { weights, total } = headWeights(task, row, kvHead * group + i, position, pageOf, pool);
    return weights.map((weight) => weight / total);
  });
}

function reduceHeads(weights: readonly number[], reduce: HeadReduce): number {
  if (reduce === 'max') return Math.max(...weights);
  return weights.reduce((sum, weight) => sum + weight, 0) / weights.length;
}
