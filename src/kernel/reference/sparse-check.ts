// Sparse keys, selections and page selections of a step against the layer groups of its program: the same rules as
// native/ops/sparse_check.cc.
import type { LayerGroup } from '../../util/step.ts';
import {
  boundPages,
  type KvSelection,
  keptOfPrompt,
  type PageSelection,
  pageTokens,
  type SlotTable,
  type SparseKeys,
  type Step,
  slotPagesOfState,
  slotsNeeded,
} from '../../util/step.ts';
import type { KvPoolSpec } from '../backend.ts';

/** @throws RangeError that names the first invalid entry */
export function checkSparse(groups: readonly LayerGroup[], pool: KvPoolSpec, step: Step): void {
  const check = new SparseCheck(groups, pool, step);
  for (const [i, keys] of (step.sparse ?? []).entries()) check.sparse(`sparse[${i}]`, keys);
  for (const [i, selection] of (step.selections ?? []).entries()) check.selection(`selections[${i}]`, selection);
  for (const [i, selection] of (step.pageSelections ?? []).entries())
    check.pageSelection(`pageSelections[${i}]`, selection);
}

/** True if the sequence keeps only some tokens in the group, and lists no blocks there. */
export function isSparse(step: Step, sequence: number, group: number): boolean {
  return step.sparse?.some((keys) => keys.sequence === sequence && keys.group === group) === true;
}

class SparseCheck {
  readonly #groups: readonly LayerGroup[];
  readonly #pool: KvPoolSpec;
  readonly #step: Step;
  readonly #seen = new Set<string>();

  constructor(groups: readonly LayerGroup[], pool: KvPoolSpec, step: Step) {
    this.#groups = groups;
    this.#pool = pool;
    this.#step = step;
  }

  sparse(name: string, keys: SparseKeys): void {
    const layers = this.#place(name, keys);
    const { slots, kept, budget, compactEvery, recent, decay } = keys;
    this.#slots(name, slots, layers);
    require(kept.length === layers && budget.length === layers, `${name} has no kept tokens and budget for each layer`);
    require(compactEvery >= 0 && recent >= 0 && decay > 0 && decay <= 1, `${name} has an invalid eviction`);
    for (let layer = 0; layer < layers; layer++) {
      require(budget[layer] >= 1, `${name} has no budget in layer ${layer}`);
      const most = compactEvery === 0 ? budget[layer] : budget[layer] + compactEvery - 1;
      require(kept[layer] >= 0 && kept[layer] <= most, `${name} keeps ${kept[layer]} tokens in layer ${layer}`);
      const slotsFilled = Math.min(kept[layer] + this.#rows(keys.sequence), slotsNeeded(budget[layer], compactEvery));
      this.#capacity(name, slots, layer, slotsFilled);
    }
  }

  selection(name: string, selection: KvSelection): void {
    const layers = this.#place(name, selection);
    const { slots, budget, observed, recent, pooling, sequence } = selection;
    this.#slots(name, slots, layers);
    require(budget.length === layers, `${name} has no budget for each layer`);
    require(observed >= 1 && recent >= 0, `${name} has an invalid window`);
    require(pooling.width >= 1 && pooling.width % 2 === 1, `${name} has an even pooling width: ${pooling.width}`);
    const keys = this.#step.positions[this.#step.rowStart[sequence + 1] - 1] + 1;
    const rows = this.#rows(sequence);
    require(rows >= Math.min(observed, keys), `${name} observes ${observed} rows: the step has ${rows}`);
    for (let layer = 0; layer < layers; layer++) {
      require(budget[layer] >= 1, `${name} has no budget in layer ${layer}`);
      this.#capacity(name, slots, layer, keptOfPrompt(keys, budget[layer]));
    }
  }

  pageSelection(name: string, selection: PageSelection): void {
    require(this.#pool.type !== 'q8', `${name} bounds q8 keys: rounded bounds would not bound them`);
    const layers = this.#place(name, selection);
    const { sequence, bounds, bounded, budget, topP } = selection;
    const blocks = Math.floor(this.#step.positions[this.#step.rowStart[sequence + 1] - 1] / pageTokens) + 1;
    const full = Math.floor(this.#step.positions[this.#step.rowStart[sequence]] / pageTokens);
    require(bounds.length >= boundPages(blocks, layers), `${name} has too few pages of bounds: ${bounds.length}`);
    require(bounded >= 0 && bounded <= full, `${name} has bounds of ${bounded} blocks: ${full} are full`);
    require(budget >= 2 && topP > 0 && topP <= 1, `${name} has an invalid budget`);
    this.#pages(name, bounds);
  }

  #rows(sequence: number): number {
    return this.#step.rowStart[sequence + 1] - this.#step.rowStart[sequence];
  }

  /** Layers of the group. */
  #place(name: string, { sequence, group }: { readonly sequence: number; readonly group: number }): number {
    require(sequence >= 0 && sequence + 1 < this.#step.rowStart.length, `${name} names sequence ${sequence}`);
    const of = this.#groups[group];
    require(of !== undefined && of.window === undefined, `${name} names layer group ${group}`);
    const key = `${sequence} ${group}`;
    require(!this.#seen.has(key), `${name} is the second of sequence ${sequence} and layer group ${group}`);
    this.#seen.add(key);
    const remote = this.#step.remote.some((keys) => keys.sequence === sequence && keys.group === group);
    require(!remote, `${name} has remote keys`);
    return of?.layers ?? 0;
  }

  #slots(name: string, { pages, pageStart, states }: SlotTable, layers: number): void {
    const ascending = pageStart.every((start, i) => start >= (i === 0 ? 0 : pageStart[i - 1]));
    const whole = pageStart.length === layers + 1 && pageStart[0] === 0 && pageStart[layers] === pages.length;
    require(ascending && whole, `${name} has pages that do not belong to its ${layers} layers`);
    const covered = states.length * slotPagesOfState(this.#pool.headDim, this.#pool.type);
    require(covered >= pages.length, `${name} has too few pages of slot states: ${states.length}`);
    this.#pages(name, pages);
    this.#pages(name, states);
  }

  #capacity(name: string, { pageStart }: SlotTable, layer: number, slots: number): void {
    const has = (pageStart[layer + 1] - pageStart[layer]) * pageTokens;
    require(has >= slots, `${name} has ${has} slots in layer ${layer}: ${slots} needed`);
  }

  #pages(name: string, pages: Int32Array): void {
    for (const page of pages)
      require(page >= 0 && page < this.#pool.pages, `${name} names page ${page}: the pool has ${this.#pool.pages}`);
  }
}

function require(holds: boolean, otherwise: string): void {
  if (!holds) throw new RangeError(`Cannot run the step: ${otherwise}`);
}
