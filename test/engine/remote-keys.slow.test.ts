// A sequence with ranges at creditors: in every form and on every instruction set, its logits equal those of one
// instance that holds all ranges, bit for bit.
import { afterAll, describe, expect, test } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import type { ModelForms } from '../../src/engine/forms.ts';
import { freeModel, loadModel } from '../../src/engine/load-model.ts';
import { groupedStep, type PlainPages, type PlainSequence, plainPages } from '../../src/engine/plain-step.ts';
import type { Backend, KvPoolHandle, RemoteAttentionHandle } from '../../src/kernel/backend.ts';
import { counterUniform } from '../../src/util/counter-random.ts';
import { pageTokens, type RemoteKeys, rangeTokens, remoteBlock } from '../../src/util/step.ts';
import { nativeBackends } from './backends.ts';
import { familySpecs, ModelFolder, oddSpec } from './models.ts';
import { bitRows, blocksFor, someTokens } from './play.ts';

const folder = new ModelFolder();
afterAll(() => folder.remove());

const forms = [
  { weights: 'f32', inputs: 'f32' },
  { weights: 'bf16', inputs: 'bf16' },
  { weights: 'q4', inputs: 'int8' },
] as const satisfies readonly ModelForms[];
const q8Forms = { weights: 'q4', inputs: 'i16', kvType: 'q8' } as const satisfies ModelForms;

const tokens = 1700;
const rangeBlocks = rangeTokens / pageTokens;
/** The sequence has the first blocks of the pool, the other sequence those behind them. */
const blocksMost = Math.ceil(tokens / pageTokens) + 1;

/** A creditor's pool: block i has the pages from i x layers on. */
class Creditor {
  readonly pool: KvPoolHandle;
  readonly server: RemoteAttentionHandle;
  readonly #backend: Backend;
  readonly #layers: number;

  constructor(backend: Backend, engine: Engine, layers: number) {
    const { kvHeads, headDim, type } = engine.model.kv;
    this.#backend = backend;
    this.#layers = layers;
    this.pool = backend.createKvPool({ pages: blocksMost * layers, kvHeads, headDim, type });
    this.server = backend.createRemoteAttentionServer(this.pool);
  }

  /** Copies a range, and lends its blocks. */
  hold(engine: Engine, range: number, { pageTable }: PlainPages): void {
    this.#copy(range, (own, block, layer) =>
      this.#backend.writePage(this.pool, own, engine.readPage(pageTable[block * this.#layers + layer])),
    );
    const pages = Int32Array.from(
      { length: rangeBlocks * this.#layers },
      (_, i) => range * rangeBlocks * this.#layers + i,
    );
    this.#backend.lendBlocks(this.server, range, blocksOf(range), pages);
  }

  giveBack(engine: Engine, range: number, { pageTable }: PlainPages): void {
    this.#backend.takeBackBlocks(this.server, range, blocksOf(range));
    this.#copy(range, (own, block, layer) =>
      engine.writePage(pageTable[block * this.#layers + layer], this.#backend.readPage(this.pool, own)),
    );
  }

  #copy(range: number, each: (own: number, block: number, layer: number) => void): void {
    for (const block of blocksOf(range))
      for (let layer = 0; layer < this.#layers; layer++) each(block * this.#layers + layer, block, layer);
  }

  free(): void {
    this.#backend.freeRemoteAttentionServer(this.server);
    this.#backend.freeKvPool(this.pool);
    this.#backend.close();
  }
}

function blocksOf(range: number): Int32Array {
  return Int32Array.from({ length: rangeBlocks }, (_, i) => range * rangeBlocks + i);
}

/** Logit bits of all rows: prefill in chunks beside another sequence, then decode. Between steps ranges move to creditors and some return. */
class Course {
  readonly #engine: Engine;
  readonly #pages: readonly PlainPages[];
  readonly #group: number;
  readonly #creditors: readonly Creditor[];
  readonly #places = new Map<number, Creditor>();
  readonly #vocabSize: number;

  constructor(engine: Engine, creditors: readonly Creditor[], vocabSize: number) {
    this.#engine = engine;
    this.#pages = plainPages(2 * blocksMost, engine.model.kv.groups);
    this.#group = engine.model.kv.groups.findIndex(({ window }) => window === undefined);
    this.#creditors = creditors;
    this.#vocabSize = vocabSize;
  }

  play(seed: number): Uint32Array[] {
    const all: Uint32Array[] = [];
    const prompt = someTokens(tokens, this.#vocabSize, 4);
    const sizes = [700, 333, 100, 300, 1, 1, 200, 1, 1];
    let start = 0;
    for (const size of sizes) {
      const rows = prompt.slice(start, start + size);
      all.push(...this.#step({ tokens: rows, start, blocks: blocksFor(tokens, 0), logits: 'last' }, all.length));
      start += size;
      this.#move(start, seed + start);
    }
    for (const [range, creditor] of this.#places) creditor.giveBack(this.#engine, range, this.#table());
    this.#places.clear();
    return all;
  }

  #table(): PlainPages {
    const table = this.#pages[this.#group];
    if (table === undefined) throw new Error('all layers have windows');
    return table;
  }

  #move(computed: number, seed: number): void {
    for (let range = 0; range < Math.floor(computed / rangeTokens) && this.#creditors.length > 0; range++) {
      const chance = counterUniform(seed, 3, range);
      const holder = this.#places.get(range);
      if (holder !== undefined && chance < 0.3) {
        holder.giveBack(this.#engine, range, this.#table());
        this.#places.delete(range);
      } else if (holder === undefined && chance < 0.8) {
        const creditor = this.#creditors[Math.floor(chance * 100) % this.#creditors.length];
        creditor?.hold(this.#engine, range, this.#table());
        if (creditor !== undefined) this.#places.set(range, creditor);
        this.#spoil(range);
      }
    }
  }

  #spoil(range: number): void {
    const { pageTable, layers } = this.#table();
    for (const block of blocksOf(range))
      for (const page of pageTable.subarray(block * layers, (block + 1) * layers))
        this.#engine.writePage(page, this.#engine.readPage(page).fill(Number.NaN));
  }

  #step(sequence: PlainSequence, made: number): Uint32Array[] {
    const company = {
      tokens: someTokens(3, this.#vocabSize, made),
      start: 0,
      blocks: [blocksMost + 1],
      logits: 'last',
    } as const;
    const plain = groupedStep([company, sequence], this.#pages);
    // The range of the first row must be local: remote keys from there on are refused.
    const gone = [...this.#places.entries()].sort(([a], [b]) => a - b);
    const groups = plain.groups.map((group, index) => {
      if (index !== this.#group) return group;
      const blocks = group.blocks.slice();
      for (const [range] of gone)
        blocks.fill(
          remoteBlock,
          group.blockStart[1] + range * rangeBlocks,
          group.blockStart[1] + (range + 1) * rangeBlocks,
        );
      return { ...group, blocks };
    });
    const remote = gone.map(([range, { server }]): RemoteKeys => {
      return {
        sequence: 1,
        group: this.#group,
        firstBlock: range * rangeBlocks,
        server,
        loan: range,
        blocks: blocksOf(range),
      };
    });
    const outcome = this.#engine.run({ ...plain, groups, remote }, new Int32Array(1));
    if (outcome.kind !== 'done') throw new Error('the step was aborted');
    expect(outcome.result.failedSequences).toEqual(new Int32Array(0));
    return bitRows(this.#engine.readLogits(2), 2);
  }
}

const specs = [
  oddSpec,
  ...familySpecs
    .filter(({ architecture }) => architecture === 'gemma2' || architecture === 'bloom')
    .map((spec) => ({ ...spec, maxPositions: 2048 })),
];

for (const { name, create } of nativeBackends) {
  // Other families differ outside the scores: one instruction set suffices.
  const some = name === nativeBackends.at(-1)?.name ? specs : [oddSpec];
  for (const spec of some) {
    const held: readonly ModelForms[] = spec === oddSpec && some === specs ? [...forms, q8Forms] : forms;
    test.each(held)(`${spec.architecture} on ${name}, weights $weights, inputs $inputs, KV $kvType`, (form) => {
      const backend = create(2);
      const path = folder.huggingFace(spec, 'f32');
      const model = loadModel({ model: path, backend, ...form });
      const layers = model.kv.groups.reduce((sum, group) => sum + group.layers, 0);
      const kvBytes = 2 * blocksMost * layers * model.kv.pageBytes;
      const engine = new Engine({ model, backend, tokensMax: 800, logitRowsMax: 4, kvBytes });
      const lent = model.kv.groups.find(({ window }) => window === undefined)?.layers ?? 0;
      const creditors = [1, 2, 1].map((threads) => new Creditor(create(threads), engine, lent));
      try {
        const wanted = new Course(engine, [], spec.vocabSize).play(0);
        for (const seed of [1, 2]) expect(new Course(engine, creditors, spec.vocabSize).play(seed)).toEqual(wanted);
        expect(backend.remoteCounts().queries).toBeGreaterThan(0);
      } finally {
        for (const creditor of creditors) creditor.free();
        engine.close();
        freeModel(model, backend);
        backend.close();
      }
    });
  }
}
if (nativeBackends.length === 0) describe.skip('native kernels are not compiled', () => {});
