// Slots of a sparse sequence in one layer, their running scores and positions, and the choice of kept tokens: the plain
// form of native/attention/sparse.
import { type KvSelection, pageTokens, type SlotTable, slotPagesOfState } from '../../util/step.ts';
import type { SlotStates } from '../backend.ts';
import type { PageOf, ReferencePool } from './attention.ts';

/** The slots of one layer. Slot s of KV head h is place s % pageTokens of its page. */
export class LayerSlots {
  readonly pageOf: PageOf;
  readonly #pool: ReferencePool;
  readonly #table: SlotTable;
  readonly #layer: number;
  readonly #slotsOfState: number;

  constructor(pool: ReferencePool, table: SlotTable, layer: number) {
    this.#pool = pool;
    this.#table = table;
    this.#layer = layer;
    this.#slotsOfState = pageTokens * slotPagesOfState(pool.spec.headDim, pool.spec.type);
    const first = table.pageStart[layer];
    this.pageOf = (slot) => pool.page(table.pages[first + Math.floor(slot / pageTokens)]);
  }

  score(head: number, slot: number): number {
    const { page, at } = this.#stateAt(head, slot);
    return page[at];
  }

  setScore(head: number, slot: number, score: number): void {
    const { page, at } = this.#stateAt(head, slot);
    page[at] = score;
  }

  position(head: number, slot: number): number {
    const { page, at } = this.#stateAt(head, slot);
    return page[at + this.#slotsOfState];
  }

  setPosition(head: number, slot: number, position: number): void {
    const { page, at } = this.#stateAt(head, slot);
    page[at + this.#slotsOfState] = position;
  }

  /** Copies K and V of one KV head from place `from` of a page. */
  copyFrom(page: Float32Array, from: number, head: number, slot: number): void {
    const { headDim } = this.#pool.spec;
    const into = this.pageOf(slot);
    for (const part of [0, 1] as const) {
      const start = this.#pool.headStart(part, head);
      const source = start + (from % pageTokens) * headDim;
      into.set(page.subarray(source, source + headDim), start + (slot % pageTokens) * headDim);
    }
  }

  /** Writes K | V of all KV heads of one token, already rounded, for one head. */
  write(head: number, slot: number, keyValue: Float32Array): void {
    const { headDim, kvHeads } = this.#pool.spec;
    const into = this.pageOf(slot);
    for (const part of [0, 1] as const) {
      const from = (part * kvHeads + head) * headDim;
      const to = this.#pool.headStart(part, head) + (slot % pageTokens) * headDim;
      into.set(keyValue.subarray(from, from + headDim), to);
    }
  }

  /** The filled slot with the lowest score at a position below `before`; among equal scores the highest position. */
  lowest(head: number, filled: number, before: number): number {
    let lowest = -1;
    for (let slot = 0; slot < filled; slot++) {
      if (this.position(head, slot) >= before) continue;
      if (lowest < 0 || this.#isLower(head, slot, lowest)) lowest = slot;
    }
    return lowest;
  }

  /** Keeps `budget` slots: those at position `recentFrom` or later, then the highest scores; ascending in position. */
  compact(head: number, filled: number, budget: number, recentFrom: number): void {
    const slots = Array.from({ length: filled }, (_, slot) => slot);
    const isRecent = (slot: number) => this.position(head, slot) >= recentFrom;
    slots.sort((a, b) => Number(isRecent(b)) - Number(isRecent(a)) || (this.#isLower(head, a, b) ? 1 : -1));
    const kept = slots.slice(0, budget).sort((a, b) => this.position(head, a) - this.position(head, b));
    const held = kept.map((slot) => ({
      page: this.pageOf(slot).slice(),
      slot,
      score: this.score(head, slot),
      position: this.position(head, slot),
    }));
    for (const [slot, { page, slot: from, score, position }] of held.entries()) {
      this.copyFrom(page, from, head, slot);
      this.setScore(head, slot, score);
      this.setPosition(head, slot, position);
    }
  }

  #isLower(head: number, slot: number, than: number): boolean {
    const difference = this.score(head, slot) - this.score(head, than);
    return difference < 0 || (difference === 0 && this.position(head, slot) > this.position(head, than));
  }

  #stateAt(head: number, slot: number): { readonly page: Float32Array; readonly at: number } {
    const { pageStart, states } = this.#table;
    const flat = pageStart[this.#layer] * pageTokens + slot;
    const page = this.#pool.page(states[Math.floor(flat / this.#slotsOfState)]);
    const shareValues = 2 * pageTokens * this.#pool.spec.headDim;
    return { page, at: head * shareValues + (flat % this.#slotsOfState) };
  }
}

/** The states in one page of slot states. */
export function slotStatesOf(pool: ReferencePool, page: number): SlotStates {
  const { kvHeads, headDim, type } = pool.spec;
  const slots = pageTokens * slotPagesOfState(headDim, type);
  const values = pool.page(page);
  const scores = new Float32Array(kvHeads * slots);
  const positions = new Int32Array(kvHeads * slots);
  for (let head = 0; head < kvHeads; head++) {
    const at = head * 2 * pageTokens * headDim;
    scores.set(values.subarray(at, at + slots), head * slots);
    positions.set(values.subarray(at + slots, at + 2 * slots), head * slots);
  }
  return { scores, positions };
}

/** Kept positions, ascending, and the score that each starts with. */
export interface KeptTokens {
  readonly positions: Int32Array;
  readonly scores: Float32Array;
}

/**
 * The kept tokens of one KV head, by rules 3 to 5 of `KvSelection`. @param scores (tokens): reduced over query heads;
 * NaN counts as 0
 */
export function keepTokens(
  scores: Float32Array,
  budget: number,
  { recent, pooling }: Pick<KvSelection, 'recent' | 'pooling'>,
): KeptTokens {
  const tokens = scores.length;
  const known = scores.map((score) => (Number.isNaN(score) ? 0 : score));
  const before = tokens - Math.min(recent, budget, tokens);
  const pooled = Float32Array.from(known, (score, i) => (i < before ? pool(known, i, before, pooling) : score));
  const ranked = Array.from({ length: before }, (_, position) => position);
  ranked.sort((a, b) => pooled[b] - pooled[a] || a - b);
  const chosen = ranked.slice(0, Math.min(tokens, budget) - (tokens - before)).sort((a, b) => a - b);
  for (let position = before; position < tokens; position++) chosen.push(position);
  return { positions: Int32Array.from(chosen), scores: Float32Array.from(chosen, (position) => pooled[position]) };
}

function pool(scores: Float32Array, at: number, end: number, { kind, width }: KvSelection['pooling']): number {
  const half = (width - 1) / 2;
  let result = 0;
  for (let i = Math.max(0, at - half); i <= Math.min(end - 1, at + half); i++)
    result = kind === 'max' ? Math.max(result, scores[i]) : Math.fround(result + scores[i]);
  return kind === 'max' ? result : Math.fround(result / width);
}
