// Sparse KV on random shapes: selected tokens, slots with eviction in decode, and attention over chosen pages.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type PlainSequence, plainStep } from '../../src/engine/plain-step.ts';
import type { HeadShape } from '../../src/graph/program.ts';
import type { Backend, SlotStates } from '../../src/kernel/backend.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import type { KvType } from '../../src/util/kv-type.ts';
import {
  boundPages,
  type HeadReduce,
  type KvSelection,
  keptAfter,
  keptOfPrompt,
  type PageSelection,
  pageTokens,
  type SlotTable,
  type SparseKeys,
  type Step,
  slotPagesOfState,
  slotStatePages,
  slotsNeeded,
} from '../../src/util/step.ts';
import { attentionBound } from './backend-attention.ts';
import { expectClose, expectSameBits, numbers } from './scene.ts';

const layers = 2;
const layer = { group: 0, index: 1 };
const contextMax = 1024;
/** The first rBlocks belong to the sequence under test, the next ones to one beside it in the batch. */
const blocksEach = contextMax / pageTokens;
const besideRows = 5;
const slotPages = Int32Array.of(1, 16);
const noAbort = new Int32Array(1);

interface Rules {
  readonly shape: HeadShape;
  readonly kvType: KvType;
  readonly headReduce: HeadReduce;
  readonly seed: number;
}

/** One layer of attention over a pool: K, V and q come from rows of numbers that depend on the position alone. */
class World {
  readonly #backend: Backend;
  readonly #rules: Rules;
  readonly #pool: number;
  readonly #program: number;
  readonly slots: SlotTable;
  readonly bounds: Int32Array;

  constructor(backend: Backend, rules: Rules) {
    this.#backend = backend;
    this.#rules = rules;
    const { shape, kvType } = rules;
    const { heads, headDim, kvHeads } = shape;
    const columns = heads * headDim;
    let pages = 2 * blocksEach * layers;
    const take = (count: number) => Int32Array.from({ length: count }, () => pages++).reverse();
    const total = slotPages[0] + slotPages[1];
    const pageStart = Int32Array.of(0, slotPages[0], total);
    this.slots = { pages: take(total), pageStart, states: take(slotStatePages(total, headDim, kvType)) };
    this.bounds = take(boundPages(blocksEach, layers));
    this.#pool = backend.createKvPool({ kvHeads, headDim, type: kvType, pages });
    const program = {
      buffers: [
        { rows: 'token', columns: columns + 2 * kvHeads * headDim, kind: 'f32' },
        { rows: 'token', columns, kind: 'query' },
        { rows: 'token', columns, kind: 'f32' },
      ],
      ops: [
        { kind: 'qkv', layer, ...shape, rotaryDim: 0, eps: 1e-6, x: 0, out: 1 },
        { kind: 'attention', layer, ...shape, scale: 1 / Math.sqrt(headDim), q: 1, out: 2 },
      ],
      groups: [{ layers, window: undefined }],
      kvType,
    };
    this.#program = backend.createProgram(program as unknown as Parameters<Backend['createProgram']>[0], {
      ...{ linears: [], vectors: [], logitRowsMax: 1, contextMax },
      tokensMax: contextMax + besideRows,
    });
  }

  /** Attention of rows `from` to `to` of the sequence; @param beside true: another sequence is in the batch */
  run(from: number, to: number, sparse: Partial<Step>, beside = false): Float32Array {
    const { heads, headDim, kvHeads } = this.#rules.shape;
    const sequence = (start: number, rows: number, first: number): PlainSequence => ({
      tokens: new Array<number>(rows).fill(0),
      start,
      blocks: Array.from({ length: blocksEach }, (_, i) => first + i),
      logits: 'none',
    });
    const other = beside ? [sequence(0, besideRows, blocksEach)] : [];
    const pageTable = Int32Array.from({ length: 2 * blocksEach * layers }, (_, i) => 2 * blocksEach * layers - 1 - i);
    const step = plainStep([sequence(from, to - from, 0), ...other], pageTable, layers);
    const columns = (heads + 2 * kvHeads) * headDim;
    const x = new Float32Array(step.tokens.length * columns);
    for (const [row, position] of step.positions.entries())
      x.set(numbers(this.#rules.seed + position * 977, columns, 2), row * columns);
    this.#backend.writeBuffer(this.#program, 0, step.tokens.length, x);
    const outcome = this.#backend.run(this.#program, this.#pool, { ...step, ...sparse }, noAbort);
    expect(outcome.kind).toBe('done');
    return this.#backend.readBuffer(this.#program, 2, to - from);
  }

  /** States of the filled slots of the layer: (kvHeads, filled). */
  states(filled: number): SlotStates {
    const { kvHeads, headDim } = this.#rules.shape;
    const perPage = pageTokens * slotPagesOfState(headDim, this.#rules.kvType);
    const pages = Array.from(this.slots.states, (page) => this.#backend.readSlotStates(this.#pool, page));
    const scores = new Float32Array(kvHeads * filled);
    const positions = new Int32Array(kvHeads * filled);
    for (let i = 0; i < kvHeads * filled; i++) {
      const flat = this.slots.pageStart[layer.index] * pageTokens + (i % filled);
      const at = Math.floor(i / filled) * perPage + (flat % perPage);
      scores[i] = pages[Math.floor(flat / perPage)].scores[at];
      positions[i] = pages[Math.floor(flat / perPage)].positions[at];
    }
    return { scores, positions };
  }

  close(): void {
    this.#backend.freeProgram(this.#program);
    this.#backend.freeKvPool(this.#pool);
  }
}

const shapes: fc.Arbitrary<HeadShape> = fc
  .record({
    kvHeads: fc.integer({ min: 1, max: 2 }),
    group: fc.integer({ min: 1, max: 4 }),
    halfDim: fc.constantFrom(3, 8, 16, 33),
  })
  .map(({ kvHeads, group, halfDim }) => ({ heads: kvHeads * group, kvHeads, headDim: 2 * halfDim }));

const rulesOf = fc.record<Rules>({
  shape: shapes,
  kvType: fc.constantFrom<KvType>('bf16', 'f32'),
  headReduce: fc.constantFrom<HeadReduce>('max', 'mean'),
  seed: fc.nat(1e6),
});

const prompts = fc.record({
  tokens: fc.oneof(fc.integer({ min: 1, max: 60 }), fc.integer({ min: 200, max: 600 })),
  budget: fc.integer({ min: 1, max: 300 }),
  observed: fc.integer({ min: 1, max: 80 }),
  recent: fc.integer({ min: 0, max: 20 }),
  kind: fc.constantFrom<'max' | 'mean'>('max', 'mean'),
  width: fc.constantFrom(1, 5, 7),
});
type Prompt = typeof prompts extends fc.Arbitrary<infer Value> ? Value : never;

function selectionOf({ slots }: World, { headReduce }: Rules, prompt: Prompt): KvSelection {
  const { budget, observed, recent, kind, width } = prompt;
  const pooling = { kind, width };
  return { sequence: 0, group: 0, slots, budget: Int32Array.of(1, budget), observed, recent, pooling, headReduce };
}

/** Slots in q8 pages. */
const q8Slots: [Rules, Prompt, number] = [
  { shape: { heads: 6, kvHeads: 2, headDim: 32 }, kvType: 'q8', headReduce: 'max', seed: 3 },
  { tokens: 330, budget: 90, observed: 20, recent: 10, kind: 'max', width: 5 },
  4,
];

/** Runs a test in worlds of both backends. A fixed seed: near-ties of scores may be broken differently by rounding. */
function property(
  backend: Backend,
  numRuns: number,
  examples: readonly [Rules, Prompt, number][],
  body: (got: World, wanted: World, rules: Rules, prompt: Prompt, seed: number) => void,
): void {
  fc.assert(
    fc.property(rulesOf, prompts, fc.nat(1000), (rules, prompt, seed) => {
      const worlds = [new World(backend, rules), new World(oracle, rules)];
      try {
        body(worlds[0], worlds[1], rules, prompt, seed);
      } finally {
        for (const world of worlds) world.close();
      }
    }),
    { numRuns: numRuns + examples.length, seed: 17, endOnFailure: true, examples: [...examples] },
  );
}

const oracle = new ReferenceBackend();

export function testSparse(backend: Backend): void {
  test('selected tokens equal those of the reference, and do not depend on chunks or the batch', () => {
    property(backend, 10, [q8Slots], (got, wanted, rules, prompt) => {
      const { tokens, observed, budget } = prompt;
      const filled = keptOfPrompt(tokens, budget);
      const select = (world: World) => ({ selections: [selectionOf(world, rules, prompt)] });
      const plain = got.run(0, tokens, {});
      expectSameBits(got.run(0, tokens, select(got)), plain, 'attention beside selection');
      const states = got.states(filled);
      const reference = wanted.run(0, tokens, select(wanted));
      expectClose(plain, reference, () => 4 * attentionBound(backend, rules.kvType), 'attention');
      const expected = wanted.states(filled);
      expect(states.positions).toEqual(expected.positions);
      const error = attentionBound(backend, rules.kvType) > 1e-4 ? 3e-3 : 1e-4;
      expectClose(states.scores, expected.scores, (i) => error * expected.scores[i] + 1e-6, 'scores');
      const first = Math.floor(Math.max(0, tokens - observed) / 2);
      if (first > 0) got.run(0, first, {}, true);
      got.run(first, tokens, select(got), true);
      const again = got.states(filled);
      expect(again.positions).toEqual(states.positions);
      expectSameBits(again.scores, states.scores, 'scores of a chunk');
    });
  });

  test('decode over slots evicts as the reference, and rows of one step equal steps of one row', () => {
    property(backend, 8, [q8Slots], (got, wanted, rules, prompt, seed) => {
      const { tokens, budget } = prompt;
      const compactEvery = seed % 2 === 0 ? 0 : 1 + (seed % 9);
      const rows = 16;
      const budgets = Int32Array.of(1, budget);
      const select = (world: World) => {
        world.run(0, tokens, { selections: [selectionOf(world, rules, prompt)] });
      };
      let kept = Int32Array.of(1, keptOfPrompt(tokens, budget));
      const keysOf = (world: World, filled: Int32Array): { readonly sparse: readonly SparseKeys[] } => {
        const { recent } = prompt;
        const state = { slots: world.slots, kept: filled, budget: budgets, headReduce: rules.headReduce };
        return { sparse: [{ sequence: 0, group: 0, ...state, compactEvery, recent, decay: 0.99 }] };
      };
      expect(slotsNeeded(budget, compactEvery)).toBeLessThan(slotPages[1] * pageTokens);
      const start = kept;
      for (const world of [got, wanted]) select(world);
      const outs: Float32Array[] = [];
      for (let row = 0; row < rows; row++) {
        const at = tokens + row;
        outs.push(got.run(at, at + 1, keysOf(got, kept), row % 2 === 0));
        const reference = wanted.run(at, at + 1, keysOf(wanted, kept));
        expectClose(outs[row], reference, () => 4 * attentionBound(backend, rules.kvType), `row ${row}`);
        kept = Int32Array.of(1, keptAfter(kept[1], budget, compactEvery, 1));
        expect(got.states(kept[1]).positions).toEqual(wanted.states(kept[1]).positions);
      }
      const states = got.states(kept[1]);
      select(got);
      const together = got.run(tokens, tokens + rows, keysOf(got, start));
      expectSameBits(together, Float32Array.from(outs.flatMap((out) => [...out])), 'rows of one step');
      expect(got.states(kept[1])).toEqual(states);
    });
  });

  test('attention over the pages with the highest bounds equals the reference', () => {
    property(backend, 8, [], (got, wanted, rules, { tokens, budget }, seed) => {
      const topP = seed % 3 === 0 ? 1 : 0.2 + 0.5 * (seed / 1000);
      const rows = 3;
      const choose = (world: World, bounded: number): { readonly pageSelections: readonly PageSelection[] } => {
        const entry = { bounds: world.bounds, bounded, budget: 2 + (budget % 7), topP };
        return { pageSelections: [{ sequence: 0, group: 0, ...entry }] };
      };
      got.run(0, tokens, {});
      wanted.run(0, tokens, {});
      const outs: Float32Array[] = [];
      for (let row = 0; row < rows; row++) {
        const bounded = row === 0 ? 0 : Math.floor((tokens + row) / pageTokens);
        outs.push(got.run(tokens + row, tokens + row + 1, choose(got, bounded), row === 1));
        const reference = wanted.run(tokens + row, tokens + row + 1, choose(wanted, bounded));
        expectClose(outs[row], reference, () => 4 * attentionBound(backend, rules.kvType), `row ${row}`);
      }
      const together = got.run(tokens, tokens + rows, choose(got, 0));
      expectSameBits(together, Float32Array.from(outs.flatMap((out) => [...out])), 'rows of one step');
      const all = { ...choose(got, 0).pageSelections[0], budget: 1000, topP: 1 };
      const whole = got.run(tokens, tokens + 1, { pageSelections: [all] });
      expectSameBits(whole, got.run(tokens, tokens + 1, {}), 'all pages');
    });
  });

  test('refuses bounds of q8 keys', () => {
    for (const each of [backend, oracle]) {
      const world = new World(each, q8Slots[0]);
      world.run(0, 40, {});
      expect(() => world.run(40, 43, pageSelections({})(world))).toThrow('bounds q8 keys: rounded bounds would not');
      world.close();
    }
  });

  test.each(invalidSteps)('refuses a step: $why', ({ why, step }) => {
    const shape = { heads: 2, kvHeads: 1, headDim: 8 };
    for (const each of [backend, oracle]) {
      const world = new World(each, { shape, kvType: 'f32', headReduce: 'max', seed: 1 });
      world.run(0, 40, {});
      expect(() => world.run(40, 43, step(world))).toThrow(why);
      world.close();
    }
  });
}

const validKeys = ({ slots }: World): SparseKeys => ({
  ...{ sequence: 0, group: 0, slots, kept: Int32Array.of(1, 7), budget: Int32Array.of(1, 8) },
  ...{ compactEvery: 0, recent: 2, decay: 1, headReduce: 'max' },
});
const validSelection = ({ slots }: World): KvSelection => ({
  ...{ sequence: 0, group: 0, slots, budget: Int32Array.of(1, 8), observed: 3, recent: 2 },
  ...{ pooling: { kind: 'max', width: 5 }, headReduce: 'max' },
});
const sparse = (keys: Partial<SparseKeys>) => (world: World) => ({ sparse: [{ ...validKeys(world), ...keys }] });
const selections = (entry: Partial<KvSelection>) => (world: World) => ({
  selections: [{ ...validSelection(world), ...entry }],
});
const pageSelections = (entry: Partial<PageSelection>) => (world: World) => ({
  pageSelections: [{ ...{ sequence: 0, group: 0, bounds: world.bounds, bounded: 0, budget: 2, topP: 1 }, ...entry }],
});
const noPages = { pages: new Int32Array(0), pageStart: Int32Array.of(0, 0, 0), states: new Int32Array(0) };

const invalidSteps: readonly { readonly why: string; readonly step: (world: World) => Partial<Step> }[] = [
  { why: 'sparse[0] names sequence 1', step: sparse({ sequence: 1 }) },
  { why: 'sparse[0] names layer group 1', step: sparse({ group: 1 }) },
  { why: 'sparse[0] has no kept tokens and budget for each layer', step: sparse({ kept: Int32Array.of(1) }) },
  { why: 'sparse[0] keeps 9 tokens in layer 1', step: sparse({ kept: Int32Array.of(1, 9) }) },
  { why: 'sparse[0] has an invalid eviction', step: sparse({ decay: 0 }) },
  { why: 'sparse[0] has 0 slots in layer 0: 1 needed', step: sparse({ slots: noPages }) },
  {
    why: 'sparse[0] has pages that do not belong to its 2 layers',
    step: sparse({ slots: { ...noPages, pageStart: Int32Array.of(0, 1, 0) } }),
  },
  {
    why: 'sparse[0] has too few pages of slot states: 0',
    step: (world) => sparse({ slots: { ...world.slots, states: noPages.states } })(world),
  },
  { why: 'has an even pooling width: 4', step: selections({ pooling: { kind: 'max', width: 4 } }) },
  { why: 'selections[0] observes 9 rows: the step has 3', step: selections({ observed: 9 }) },
  { why: 'selections[0] has no budget in', step: selections({ budget: Int32Array.of(1, 0) }) },
  {
    why: 'selections[0] is the second of sequence 0 and layer group 0',
    step: (world) => ({ ...sparse({})(world), ...selections({})(world) }),
  },
  { why: 'pageSelections[0] has bounds of 2 blocks: 1 are full', step: pageSelections({ bounded: 2 }) },
  { why: 'pageSelections[0] has too few pages of bounds: 1', step: pageSelections({ bounds: Int32Array.of(3) }) },
  { why: 'pageSelections[0] names page 9999: the pool has', step: pageSelections({ bounds: Int32Array.of(3, 9999) }) },
];
