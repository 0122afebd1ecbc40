// Decode steps of a whole model over all keys, kept tokens and chosen pages: `kvasir bench sparse-decode`.
import { type BudgetShape, layerBudgets } from '../../core/kvcache/sparsity/budgets.ts';
import { Engine } from '../../engine/engine.ts';
import type { InputChoice, WeightsForm } from '../../engine/forms.ts';
import { freeModel, type LoadedModel, loadModel } from '../../engine/load-model.ts';
import { groupedStep, type PlainPages, type PlainSequence, plainPages } from '../../engine/plain-step.ts';
import type { Backend } from '../../kernel/backend.ts';
import type { KvType } from '../../util/kv-type.ts';
import {
  boundPages,
  type KvSelection,
  type PageSelection,
  pageTokens,
  type SlotTable,
  type SparseKeys,
  type Step,
  slotStatePages,
} from '../../util/step.ts';
import type { ModelFiles } from '../../weights/types.ts';
import { median, round } from '../statistics.ts';

export const decodeMethods = ['full', 'uniform', 'pyramid', 'quest'] as const;
export type DecodeMethod = (typeof decodeMethods)[number];

export interface SparseDecodeBench {
  readonly files: ModelFiles;
  readonly weights: WeightsForm;
  readonly inputs: InputChoice;
  readonly kvType?: KvType | undefined;
  readonly methods: readonly DecodeMethod[];
  /** Tokens of each sequence; more than the model has positions are allowed, since the keys are random. */
  readonly contexts: readonly number[];
  /** Sequences of a step. */
  readonly batch: number;
  /** Tokens that each KV head of a sparse layer keeps or reads. */
  readonly budget: number;
  readonly repeats: number;
  readonly onProgress: (line: string) => void;
}

export interface SparseDecodeRow {
  readonly context: number;
  readonly method: DecodeMethod;
  readonly batch: number;
  /** A step: median of rounds, in which the methods take turns. */
  readonly ms: number;
  /** Time of the first method over its own: median of rounds. */
  readonly timesFaster: number;
  /** Bytes that a step reads: weights; K and V; and what sparse KV adds, states of slots or bounds of pages. */
  readonly weightsMb: number;
  readonly kvMb: number;
  readonly addedMb: number;
  readonly gbPerSecond: number;
}

export interface SparseDecodeReport {
  readonly model: string;
  readonly isa: string;
  readonly threads: number;
  readonly budget: number;
  readonly rows: readonly SparseDecodeRow[];
}

/** Layers that `quest` reads in full, as in serving. */
const questFullLayers = 2;
/** As in serving. */
const rules = { observed: 8, recent: 32, pooling: { kind: 'max', width: 11 }, headReduce: 'max' } as const;
const warmUps = 2;

/** @throws Error if the engine cannot be created */
export function benchSparseDecode(backend: Backend, options: SparseDecodeBench): SparseDecodeReport {
  const { files, weights, inputs, kvType, contexts, repeats, budget } = options;
  const context = Math.max(...contexts) + repeats + warmUps + 1;
  const sparseLayers = Array.from({ length: files.config.layers }, (_, layer) => layer >= questFullLayers);
  const forms = { weights, inputs, kvType };
  const model = loadModel({ model: withPositions(files, context), backend, ...forms, context, sparseLayers });
  try {
    const rows = contexts.flatMap((length) => {
      const scene = new DecodeScene(backend, model, options, length);
      try {
        return scene.rows();
      } finally {
        scene.close();
      }
    });
    return { model: files.id, isa: backend.isa, threads: backend.threads, budget, rows };
  } finally {
    freeModel(model, backend);
  }
}

/** The same model with at least this number of positions. */
function withPositions(files: ModelFiles, positions: number): ModelFiles {
  const { path, kind, id, config, tokenizer, generationDefaults } = files;
  return {
    ...{ path, kind, id, tokenizer, generationDefaults },
    config: { ...config, maxPositions: Math.max(config.maxPositions, positions) },
    tensor: (name) => files.tensor(name),
    tensors: () => files.tensors(),
    unsupportedTensors: () => files.unsupportedTensors(),
    read: (...range) => files.read(...range),
    close: () => files.close(),
  };
}

/** Slots and bounds of a sequence in one layer group. */
interface GroupTables {
  readonly group: number;
  /** The first layer of the group. */
  readonly layerFrom: number;
  readonly layers: number;
  readonly budget: Int32Array;
  readonly slots: SlotTable;
  readonly bounds: Int32Array;
}

/** Sequences over pages of random keys. Each sparse method has slots of its own. */
class DecodeScene {
  readonly #backend: Backend;
  readonly #engine: Engine;
  readonly #model: LoadedModel;
  readonly #options: SparseDecodeBench;
  readonly #context: number;
  readonly #blocks: number;
  readonly #pages: readonly PlainPages[];
  /** By method: (sequences), (groups). */
  readonly #tables = new Map<DecodeMethod, readonly (readonly GroupTables[])[]>();
  readonly #abort = new Int32Array(1);

  constructor(backend: Backend, model: LoadedModel, options: SparseDecodeBench, context: number) {
    const { batch, repeats, methods } = options;
    const { groups, pageBytes, kvHeads, headDim } = model.kv;
    this.#backend = backend;
    this.#model = model;
    this.#options = options;
    this.#context = context;
    this.#blocks = Math.ceil((context + repeats + warmUps + 1) / pageTokens);
    this.#pages = plainPages(batch * this.#blocks, groups);
    let pages = batch * this.#blocks * groups.reduce((sum, { layers }) => sum + layers, 0);
    const take = (count: number): Int32Array => Int32Array.from({ length: count }, () => pages++);
    for (const method of methods)
      if (method !== 'full')
        this.#tables.set(
          method,
          Array.from({ length: batch }, () => this.#tablesOf(method, take)),
        );
    const tokensMax = Math.max(16, batch * rules.observed);
    this.#engine = new Engine({ model, backend, tokensMax, logitRowsMax: batch, kvBytes: pages * pageBytes });
    // Untouched pages might not be backed by memory.
    const values = Float32Array.from({ length: 2 * kvHeads * pageTokens * headDim }, (_, i) => Math.sin(1.7 * i));
    for (let page = 0; page < pages; page++) this.#engine.writePage(page, values);
    for (const method of methods) this.#select(method);
  }

  rows(): SparseDecodeRow[] {
    const { methods, repeats, batch, onProgress } = this.#options;
    const times = methods.map((): number[] => []);
    for (let i = -warmUps; i < repeats; i++)
      for (const [index, method] of methods.entries()) {
        const ms = this.#decode(method, i + warmUps);
        if (i >= 0) times[index].push(ms);
      }
    const first = times[0];
    return methods.map((method, index) => {
      const own = times[index];
      const ms = median(own) ?? 0;
      const { kv, added } = this.#bytes(method);
      const weightsBytes = this.#weightsBytes;
      const row = {
        ...{ context: this.#context, method, batch, ms: round(ms) },
        timesFaster: round(median(own.map((each, i) => first[i] / each)) ?? 0),
        ...{ weightsMb: round(weightsBytes / 1e6), kvMb: round(kv / 1e6), addedMb: round(added / 1e6) },
        gbPerSecond: round((weightsBytes + kv + added) / ms / 1e6),
      };
      onProgress(`${row.context} tokens, ${method}: ${row.ms} ms, ${round(row.weightsMb + row.kvMb + row.addedMb)} MB`);
      return row;
    });
  }

  close(): void {
    this.#engine.close();
  }

  /** The step that selects kept tokens, or writes the bounds of all pages. */
  #select(method: DecodeMethod): void {
    if (method === 'full') return;
    const tables = this.#tables.get(method) ?? [];
    const { observed } = rules;
    const rows = tables.map((_, index) => this.#sequence(index, this.#context - observed, observed));
    const selections = tables.flatMap((groups, sequence) =>
      groups.map(({ group, slots, budget }): KvSelection => ({ sequence, group, slots, budget, ...rules })),
    );
    this.#run(rows, method === 'quest' ? { pageSelections: this.#pageSelections(0) } : { selections });
  }

  /** Milliseconds of the `index`-th step after the selection. */
  #decode(method: DecodeMethod, index: number): number {
    const { batch } = this.#options;
    const position = this.#context + index;
    const rows = Array.from({ length: batch }, (_, sequence) => this.#sequence(sequence, position, 1));
    const bounded = Math.floor(position / pageTokens);
    const more: Partial<Step> =
      method === 'full'
        ? {}
        : method === 'quest'
          ? { pageSelections: this.#pageSelections(bounded) }
          : { sparse: this.#sparseKeys(method) };
    return this.#run(rows, more);
  }

  #sparseKeys(method: DecodeMethod): SparseKeys[] {
    const { recent, headReduce, observed } = rules;
    const shared = { recent, headReduce, compactEvery: 0, decay: 1 - 1 / observed };
    return (this.#tables.get(method) ?? []).flatMap((groups, sequence) =>
      groups.map(({ group, slots, budget }) => ({ sequence, group, slots, kept: budget, budget, ...shared })),
    );
  }

  /** @param bounded blocks with complete entries */
  #pageSelections(bounded: number): PageSelection[] {
    const budget = Math.max(2, Math.ceil(this.#options.budget / pageTokens));
    return (this.#tables.get('quest') ?? []).flatMap((groups, sequence) =>
      groups
        .filter(({ group }) => this.#isSparse(group))
        .map(({ group, bounds }) => ({ sequence, group, bounds, bounded, budget, topP: 1 })),
    );
  }

  #isSparse(group: number): boolean {
    return this.#model.kv.groups[group].sparse === true;
  }

  #tablesOf(method: DecodeMethod, take: (count: number) => Int32Array): GroupTables[] {
    const { kv, config } = this.#model;
    const { budget: most } = this.#options;
    const shape: BudgetShape = method === 'pyramid' ? 'pyramid' : 'uniform';
    const all = layerBudgets({ shape, layers: config.layers, budget: most, recent: rules.recent }, this.#context);
    let layerFrom = 0;
    return kv.groups.map(({ layers }, group) => {
      const budget = all.kept.slice(layerFrom, layerFrom + layers);
      layerFrom += layers;
      const pageStart = new Int32Array(layers + 1);
      for (let layer = 0; layer < layers; layer++)
        pageStart[layer + 1] = pageStart[layer] + Math.ceil(budget[layer] / pageTokens);
      const usesSlots = method !== 'quest';
      const slotPages = usesSlots ? pageStart[layers] : 0;
      return {
        ...{ group, layerFrom, layers, budget },
        slots: {
          pages: take(slotPages),
          pageStart,
          states: take(usesSlots ? slotStatePages(slotPages, kv.headDim, kv.type) : 0),
        },
        bounds: take(usesSlots ? 0 : boundPages(this.#blocks, layers)),
      };
    });
  }

  #sequence(index: number, start: number, count: number): PlainSequence {
    const { vocabSize } = this.#model.config;
    const tokens = Array.from({ length: count }, (_, i) => ((start + i) * 7919 + index) % vocabSize);
    const blocks = Array.from({ length: this.#blocks }, (_, block) => index * this.#blocks + block);
    return { tokens, start, blocks, logits: 'last' };
  }

  #run(rows: readonly PlainSequence[], more: Partial<Step>): number {
    const whole = groupedStep(rows, this.#pages);
    const slotted = new Set((more.sparse ?? []).map(({ group }) => group));
    // A sequence lists no blocks where it has slots.
    const groups = whole.groups.map((group, index) =>
      slotted.has(index)
        ? { ...group, blocks: new Int32Array(0), blockStart: new Int32Array(rows.length), firstBlock: group.firstBlock }
        : group,
    );
    const step: Step = { ...whole, groups, ...more };
    step.sampling.topLogprobs.fill(0);
    const startMs = performance.now();
    const outcome = this.#engine.run(step, this.#abort);
    const ms = performance.now() - startMs;
    if (outcome.kind !== 'done') throw new Error('Cannot measure decode: the step was aborted');
    return ms;
  }

  /** Bytes of all linear layers. */
  get #weightsBytes(): number {
    const { compiled, linears } = this.#model;
    const used = compiled.program.ops.flatMap((op) => (op.kind === 'linear' ? linears[op.weight] : []));
    return used.reduce((sum, linear) => sum + this.#backend.linearBytes(linear), 0);
  }

  /** Bytes of K and V that a step reads, and of slot states or page bounds. */
  #bytes(method: DecodeMethod): { readonly kv: number; readonly added: number } {
    const { kv, config } = this.#model;
    const { batch, budget } = this.#options;
    const tokenBytes = kv.pageBytes / pageTokens;
    const { layers } = config;
    if (method === 'full') return { kv: batch * layers * this.#context * tokenBytes, added: 0 };
    if (method === 'quest') {
      const sparse = layers - questFullLayers;
      const tokens = Math.max(2, Math.ceil(budget / pageTokens)) * pageTokens;
      return {
        kv: batch * (questFullLayers * this.#context + sparse * Math.min(tokens, this.#context)) * tokenBytes,
        added: batch * sparse * Math.ceil(this.#context / pageTokens) * tokenBytes,
      };
    }
    const [tables] = this.#tables.get(method) ?? [[]];
    const slots = tables.reduce((sum, { budget }) => sum + budget.reduce((all, each) => all + each, 0), 0);
    return { kv: batch * slots * tokenBytes, added: batch * slots * kv.kvHeads * 8 };
  }
}
