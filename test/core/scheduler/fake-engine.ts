// A deterministic engine for tests: pages hold tokens instead of keys and values, and each result depends on the tokens read back.
import { checkGroups } from '../../../src/kernel/reference/groups.ts';
import {
  type KvSelection,
  keptAfter,
  type LayerGroup,
  type PageSelection,
  pageTokens,
  type SlotTable,
  type SparseKeys,
  type Step,
  type StepGroup,
  type StepResult,
  topLogprobsMax,
} from '../../../src/util/step.ts';

const vocabulary = 50;
const seedHash = 17;

function mix(hash: number, value: number): number {
  return Math.imul(hash ^ (value + 0x9e3779b9), 0x85ebca6b) ^ (hash >>> 13);
}

/** The hash of a prefix: like keys and values, it depends on all tokens before. */
function hashOf(prefix: Iterable<number>): number {
  let hash = seedHash;
  for (const token of prefix) hash = mix(hash, token);
  return hash;
}

function tokenAfter(prefixHash: number, ...values: readonly number[]): number {
  let hash = prefixHash;
  for (const value of values) hash = mix(hash, value);
  return (hash >>> 4) % vocabulary;
}

/** The token that follows a prefix. Seed, seen tokens and bias change it. */
export function nextToken(prefix: Iterable<number>, seed: number, tokenIndex: number, extra = 0): number {
  return tokenAfter(hashOf(prefix), seed, tokenIndex, extra);
}

/** A sum over the lists of penalties and bias, independent of their order. */
export function extraOf(tokens: ArrayLike<number>, counts: ArrayLike<number>, bias: number): number {
  let sum = bias * 1000;
  for (let i = 0; i < tokens.length; i++) sum += Math.imul((tokens[i] ?? 0) + 1, (counts[i] ?? 0) * 31 + 7);
  return sum | 0;
}

/** A log-probability that depends on the prefix and the token: exact in float32. */
export function logprobOf(prefix: Iterable<number>, token: number): number {
  return logprobAfter(hashOf(prefix), token);
}

function logprobAfter(prefixHash: number, token: number): number {
  return -tokenAfter(prefixHash, 99, token, 0) / 64;
}

/** Blocks that another engine lends: its pages, (layers). Undefined if it does not lend the block. */
export type LentPages = (
  server: number,
  loan: number,
  block: number,
) => { readonly engine: FakeEngine; readonly pages: ArrayLike<number> } | undefined;

/** One slot of an engine. */
interface Slot {
  readonly engine: FakeEngine;
  readonly at: number;
}

/**
 * Each slot of a page holds a token and the hash of the prefix that ends with it, salted by the layer. The hash of a row depends on the slot
 * before it, as keys and values depend on those that a row attends to. Every slot that a row attends to must continue the one before.
 */
export class FakeEngine {
  readonly #groups: readonly LayerGroup[];
  readonly #tokens: Int32Array;
  readonly #hashes: Int32Array;
  readonly #lent: LentPages;
  rows = 0;
  steps = 0;

  /** @param groups at least one of them attends to two tokens or more */
  constructor(pages: number, groups: readonly LayerGroup[], lent: LentPages = () => undefined) {
    this.#groups = groups;
    this.#lent = lent;
    this.#tokens = new Int32Array(pages * pageTokens).fill(-1);
    this.#hashes = new Int32Array(pages * pageTokens).fill(-1);
  }

  /** Writes all rows, reads all slots that they attend to, and computes each logit row. @param missing sequences whose prefixes do not arrive */
  run(step: Step, missing: ReadonlySet<number> = new Set()): StepResult {
    checkGroups(this.#groups, step);
    const failedSequences = new Set([...this.#failedSequences(step), ...missing]);
    const { hashes, answers } = this.#write(step, step.tokens.length, false, failedSequences);
    for (let sequence = 0; sequence + 1 < step.rowStart.length; sequence++) {
      if (failedSequences.has(sequence)) continue;
      for (let g = 0; g < step.groups.length; g++)
        if (sparseKeys(step, sequence, g) === undefined) this.#read(step, g, sequence, hashes);
    }
    for (const selection of step.selections ?? []) this.#select(step, selection);
    for (const selection of step.pageSelections ?? []) this.#bound(step, selection);
    this.rows += step.tokens.length;
    this.steps++;
    const rows = step.logitRows.length;
    const result = {
      tokens: new Int32Array(rows),
      logprobs: new Float32Array(rows),
      topTokens: new Int32Array(rows * topLogprobsMax),
      topLogprobs: new Float32Array(rows * topLogprobsMax),
      failed: new Uint8Array(rows),
      failedSequences: Int32Array.from(failedSequences),
    };
    for (let i = 0; i < rows; i++) answer(step, i, answers[step.logitRows[i] as number] as number, result);
    return result;
  }

  /** Loses the contents of all pages. */
  clear(firstPage = 0, endPage = this.#tokens.length / pageTokens): void {
    this.#tokens.fill(-1, firstPage * pageTokens, endPage * pageTokens);
    this.#hashes.fill(-1, firstPage * pageTokens, endPage * pageTokens);
  }

  /** Some rows were written before the step stopped, some only in half of their layers. */
  abort(step: Step, rows: number): void {
    this.#write(step, Math.min(rows, step.tokens.length), true);
  }

  /** Sequences with keys that their creditor no longer has. */
  #failedSequences({ remote }: Step): ReadonlySet<number> {
    const refused = remote.filter(({ server, loan, blocks }) =>
      blocks.some((block) => this.#lent(server, loan, block) === undefined),
    );
    return new Set(refused.map(({ sequence }) => sequence));
  }

  /** Copies a page of another engine. */
  copy(page: number, other: FakeEngine, otherPage: number): void {
    const from = otherPage * pageTokens;
    this.#tokens.set(other.#tokens.subarray(from, from + pageTokens), page * pageTokens);
    this.#hashes.set(other.#hashes.subarray(from, from + pageTokens), page * pageTokens);
  }

  /** Returns the hash of each row, and that of all it attends to. */
  #write(step: Step, rows: number, broken: boolean, failedSequences: ReadonlySet<number> = new Set()) {
    const hashes = new Int32Array(rows);
    const answers = new Int32Array(rows);
    for (let sequence = 0, row = 0; sequence + 1 < step.rowStart.length; sequence++) {
      if (failedSequences.has(sequence)) {
        row = step.rowStart[sequence + 1] as number;
        continue;
      }
      let hash = this.#hashBefore(step, sequence);
      for (; row < Math.min(rows, step.rowStart[sequence + 1] as number); row++) {
        const token = step.tokens[row] as number;
        hash = mix(hash, token);
        hashes[row] = hash;
        answers[row] = hash;
        for (const [g, group] of step.groups.entries()) {
          const keys = sparseKeys(step, sequence, g);
          if (keys !== undefined) {
            const nth = row - (step.rowStart[sequence] as number);
            answers[row] = mix(hash, this.#writeSlots(keys, nth, step.positions[row] as number, token, hash));
            continue;
          }
          for (let layer = 0; layer < group.layers; layer++) {
            const slot = slotOf(group, sequence, step.positions[row] as number, layer);
            this.#tokens[slot] = broken && layer > 0 ? -7 : token + layer * 1000;
            this.#hashes[slot] = hash ^ layer;
          }
        }
      }
    }
    return { hashes, answers };
  }

  /** The row's token takes a slot in every layer. Returns a hash of all tokens kept. */
  #writeSlots(keys: SparseKeys, nth: number, position: number, token: number, hash: number): number {
    let sum = 0;
    for (let layer = 0; layer < keys.kept.length; layer++) {
      const slots = new SlotsOfLayer(keys.slots, layer);
      const { compactEvery, recent } = keys;
      const budget = keys.budget[layer] as number;
      const filled = keptAfter(keys.kept[layer] as number, budget, compactEvery, nth);
      const isFull = compactEvery === 0 && filled === budget;
      const at = isFull ? (this.#lowest(slots, filled, position - recent, 1)[0] as number) : filled;
      this.#setSlot(slots, at, { position, token: token + layer * 1000, hash: hash ^ layer });
      const count = isFull ? filled : filled + 1;
      if (compactEvery > 0 && count === budget + compactEvery)
        this.#compact(slots, count, position - recent + 1, compactEvery);
      const after = keptAfter(filled, budget, compactEvery, 1);
      for (let slot = 0; slot < after; slot++) sum = (sum + this.#slotHash(slots, slot)) | 0;
    }
    return sum;
  }

  /** Evicts the lowest scores, and moves the others to the first slots in ascending position. */
  #compact(slots: SlotsOfLayer, count: number, before: number, evicted: number): void {
    const gone = new Set(this.#lowest(slots, count, before, evicted));
    const kept = Array.from({ length: count }, (_, slot) => slot)
      .filter((slot) => !gone.has(slot))
      .map((slot) => this.#slotAt(slots, slot))
      .sort((a, b) => a.position - b.position);
    for (const [slot, content] of kept.entries()) this.#setSlot(slots, slot, content);
  }

  /** The slots with the lowest scores of positions before `before`; the highest position first among equals. */
  #lowest(slots: SlotsOfLayer, count: number, before: number, evicted: number): readonly number[] {
    const all = Array.from({ length: count }, (_, slot) => ({ slot, ...this.#slotAt(slots, slot) }));
    const old = all.filter(({ position }) => position < before);
    const byScore = old.sort((a, b) => scoreOf(a.hash) - scoreOf(b.hash) || b.position - a.position);
    return byScore.slice(0, evicted).map(({ slot }) => slot);
  }

  /** Copies the tokens with the highest scores, and the recent ones, to the first slots in ascending position. */
  #select(step: Step, { sequence, group, slots: table, budget, recent, observed }: KvSelection): void {
    const last = (step.rowStart[sequence + 1] as number) - 1;
    const count = (step.positions[last] as number) + 1;
    const rows = (step.rowStart[sequence + 1] as number) - (step.rowStart[sequence] as number);
    if (rows < Math.min(observed, count))
      throw new Error(`A selection observes ${observed} rows, the step has ${rows}`);
    for (let layer = 0; layer < budget.length; layer++) {
      const all = Array.from({ length: count }, (_, position) => {
        const { at } = this.#slot(step, group, sequence, position, layer);
        return { position, token: this.#tokens[at] as number, hash: this.#hashes[at] as number };
      });
      const most = Math.min(budget[layer] as number, count);
      const fixed = Math.min(recent, most);
      const scored = all.slice(0, count - fixed);
      scored.sort((a, b) => scoreOf(b.hash) - scoreOf(a.hash) || a.position - b.position);
      const kept = [...scored.slice(0, most - fixed), ...all.slice(count - fixed)];
      kept.sort((a, b) => a.position - b.position);
      for (const [slot, content] of kept.entries()) this.#setSlot(new SlotsOfLayer(table, layer), slot, content);
    }
  }

  /** Bounds of complete blocks must be those of their pages; the others are written. */
  #bound(step: Step, { sequence, group: g, bounds, bounded, budget }: PageSelection): void {
    const group = step.groups[g] as StepGroup;
    const last = step.positions[(step.rowStart[sequence + 1] as number) - 1] as number;
    if (budget < 2) throw new Error(`A sequence reads ${budget} pages`);
    for (let block = 0; block <= Math.floor(last / pageTokens); block++)
      for (let layer = 0; layer < group.layers; layer++) {
        const page = bounds[Math.floor(block / pageTokens) * group.layers + layer];
        if (page === undefined) throw new Error(`No page for the bounds of block ${block}`);
        const at = page * pageTokens + (block % pageTokens);
        const bound = this.#hashes[slotOf(group, sequence, block * pageTokens, layer)] as number;
        if (block < bounded && this.#hashes[at] !== bound) throw new Error(`Block ${block} has other bounds`);
        this.#hashes[at] = bound;
      }
  }

  #slotAt(slots: SlotsOfLayer, slot: number): SlotContent {
    const at = slots.at(slot);
    const position = this.#tokens[slots.state(slot)] as number;
    return { position, token: this.#tokens[at] as number, hash: this.#hashes[at] as number };
  }

  #setSlot(slots: SlotsOfLayer, slot: number, { position, token, hash }: SlotContent): void {
    this.#tokens[slots.at(slot)] = token;
    this.#hashes[slots.at(slot)] = hash;
    this.#tokens[slots.state(slot)] = position;
  }

  #slotHash(slots: SlotsOfLayer, slot: number): number {
    const { position, token, hash } = this.#slotAt(slots, slot);
    return mix(mix(hash, token), position);
  }

  /** Hash of the prefix before the sequence's first row, from a group that still attends to it. */
  #hashBefore(step: Step, sequence: number): number {
    const position = (step.positions[step.rowStart[sequence] as number] as number) - 1;
    if (position < 0) return seedHash;
    const g = this.#groups.findIndex(
      ({ window }, i) => (window === undefined || window > 1) && sparseKeys(step, sequence, i) === undefined,
    );
    const sparse = step.sparse?.find((keys) => keys.sequence === sequence);
    if (g < 0 && sparse !== undefined) {
      const slots = new SlotsOfLayer(sparse.slots, 0);
      const all = Array.from({ length: sparse.kept[0] as number }, (_, slot) => this.#slotAt(slots, slot));
      const before = all.find((content) => content.position === position);
      if (before === undefined) throw new Error(`No slot holds position ${position} of sequence ${sequence}`);
      return before.hash;
    }
    const { engine, at } = this.#slot(step, g, sequence, position, 0);
    return engine.#hashes[at] as number;
  }

  /** Throws unless every slot that the sequence's rows attend to continues the slot before it, in every layer. */
  #read(step: Step, g: number, sequence: number, hashes: Int32Array): void {
    const group = step.groups[g] as StepGroup;
    const slot = (position: number, layer: number) => this.#slot(step, g, sequence, position, layer);
    const rows = [step.rowStart[sequence] as number, (step.rowStart[sequence + 1] as number) - 1] as const;
    const last = step.positions[rows[1]] as number;
    const window = this.#groups[g]?.window ?? Number.POSITIVE_INFINITY;
    const from = Math.max(0, (step.positions[rows[0]] as number) - window + 1);
    let before = from === 0 ? seedHash : undefined;
    for (let position = from; position <= last; position++) {
      const { engine, at } = slot(position, 0);
      const hash = engine.#hashes[at] as number;
      const token = engine.#tokens[at] as number;
      if (before !== undefined && mix(before, token) !== hash)
        throw new Error(
          `Group ${g} holds another sequence's token at position ${position} of rows at ${from} to ${last}`,
        );
      for (let layer = 1; layer < group.layers; layer++) {
        const other = slot(position, layer);
        if (engine.#tokens[other.at] !== token + layer * 1000 || engine.#hashes[other.at] !== (hash ^ layer))
          throw new Error(`Layers of group ${g} disagree at position ${position}`);
      }
      before = hash;
    }
    if (before !== hashes[rows[1]]) throw new Error(`Group ${g} holds another sequence's tokens up to ${last}`);
  }

  /** The slot of a key: here, or at a creditor. */
  #slot(step: Step, g: number, sequence: number, position: number, layer: number): Slot {
    const block = Math.floor(position / pageTokens);
    const keys = step.remote.find(
      (each) =>
        each.sequence === sequence &&
        each.group === g &&
        block >= each.firstBlock &&
        block < each.firstBlock + each.blocks.length,
    );
    if (keys === undefined) return { engine: this, at: slotOf(step.groups[g] as StepGroup, sequence, position, layer) };
    const lent = this.#lent(keys.server, keys.loan, keys.blocks[block - keys.firstBlock] as number);
    if (lent === undefined) throw new Error(`No instance lends block ${block} of sequence ${sequence}`);
    return { engine: lent.engine, at: (lent.pages[layer] as number) * pageTokens + (position % pageTokens) };
  }
}

interface SlotContent {
  readonly position: number;
  readonly token: number;
  readonly hash: number;
}

/** Where the slots of a layer lie, and their states: one page of states for each page of slots. */
class SlotsOfLayer {
  readonly #table: SlotTable;
  readonly #first: number;

  constructor(table: SlotTable, layer: number) {
    this.#table = table;
    this.#first = (table.pageStart[layer] as number) * pageTokens;
  }

  at(slot: number): number {
    return this.#place(this.#table.pages, slot);
  }

  state(slot: number): number {
    return this.#place(this.#table.states, slot);
  }

  #place(pages: Int32Array, slot: number): number {
    const index = this.#first + slot;
    const page = pages[Math.floor(index / pageTokens)];
    if (page === undefined) throw new Error(`No page for slot ${slot}`);
    return page * pageTokens + (index % pageTokens);
  }
}

/** A score that does not depend on the step. */
function scoreOf(hash: number): number {
  return (hash >>> 7) % 64;
}

function sparseKeys(step: Step, sequence: number, group: number): SparseKeys | undefined {
  return step.sparse?.find((keys) => keys.sequence === sequence && keys.group === group);
}

function answer(step: Step, i: number, prefixHash: number, result: StepResult): void {
  const sampling = step.sampling;
  const seed = sampling.seed[2 * i] as number;
  const [seenFrom, seenTo] = [sampling.seenStart[i], sampling.seenStart[i + 1]];
  const bias = sampling.biasValues.subarray(sampling.biasStart[i], sampling.biasStart[i + 1]);
  const extra = extraOf(
    sampling.seenTokens.subarray(seenFrom, seenTo),
    sampling.seenCounts.subarray(seenFrom, seenTo),
    bias.reduce((sum, b) => sum + b, 0),
  );
  const scored = sampling.hasTarget[i] === 1;
  const sampled = tokenAfter(prefixHash, seed, sampling.tokenIndex[i] as number, extra);
  const token = scored ? (sampling.target[i] as number) : sampled;
  result.tokens[i] = token;
  result.logprobs[i] = logprobAfter(prefixHash, token);
  for (let k = 0; k < (sampling.topLogprobs[i] as number); k++) {
    result.topTokens[i * topLogprobsMax + k] = k;
    result.topLogprobs[i * topLogprobsMax + k] = logprobAfter(prefixHash, k);
  }
}

function slotOf(group: StepGroup, sequence: number, position: number, layer: number): number {
  const first = group.firstBlock[sequence] as number;
  const index = (group.blockStart[sequence] as number) + Math.floor(position / pageTokens) - first;
  if (
    index < (group.blockStart[sequence] as number) ||
    index >= (group.blockStart[sequence + 1] ?? group.blocks.length)
  )
    throw new Error(`No block for position ${position}: the first listed is ${first}`);
  const page = group.pageTable[(group.blocks[index] as number) * group.layers + layer] as number;
  return page * pageTokens + (position % pageTokens);
}
