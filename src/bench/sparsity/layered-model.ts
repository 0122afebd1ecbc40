// A model that runs layer by layer: the engine computes everything but attention, which a caller may replace.

import { Engine } from '../../engine/engine.ts';
import type { LoadedModel } from '../../engine/load-model.ts';
import { groupedStep, type PlainPages, plainPages } from '../../engine/plain-step.ts';
import { liveBefore, subprogram } from '../../graph/pipeline-stage.ts';
import type { BufferId, Op, Program } from '../../graph/program.ts';
import type { Backend, ProgramHandle } from '../../kernel/backend.ts';
import { pageTokens, type Step } from '../../util/step.ts';
import { SparsePages } from './sparse-steps.ts';

/** What a step keeps, selects or reads of the sequence. */
export type SparseStep = Pick<Step, 'sparse' | 'selections' | 'pageSelections'>;

export type AttentionOp = Extract<Op, { kind: 'attention' }>;

/** K and V of one layer, by KV head: (positions, headDim) each. */
export interface LayerKeys {
  readonly keys: readonly Float32Array[];
  readonly values: readonly Float32Array[];
}

/** Attention of consecutive rows in one layer. */
export interface AttentionCall {
  /** In the order of computation. */
  readonly layer: number;
  readonly op: AttentionOp;
  /** Position of the first row. */
  readonly start: number;
  readonly rows: number;
  /** (rows, heads, headDim) */
  readonly query: Float32Array;
}

/** Returns (rows, heads, headDim), or undefined for the engine's attention over all keys. */
export type Attend = (call: AttentionCall) => Float32Array | undefined;

interface Slice {
  readonly handle: ProgramHandle;
  readonly ids: ReadonlyMap<BufferId, BufferId>;
}

interface LayerProgram {
  readonly op: AttentionOp;
  /** Attention alone. */
  readonly attention: Slice;
  /** Buffers that the next slice takes over, besides the result of attention. */
  readonly carried: readonly BufferId[];
}

/** One sequence at a time, at pages of its own from position 0 on. */
export class LayeredModel {
  readonly engine: Engine;
  readonly layers: readonly LayerProgram[];
  readonly vocabulary: number;
  readonly sparsePages: SparsePages;
  readonly #backend: Backend;
  readonly #slices: readonly Slice[];
  readonly #blocks: readonly number[];
  readonly #pages: readonly PlainPages[];
  readonly #abort = new Int32Array(1);

  /** @param tokensMax of a step @param context tokens of a sequence */
  constructor(model: LoadedModel, backend: Backend, tokensMax: number, context: number) {
    const { program } = model.compiled;
    this.#backend = backend;
    this.#blocks = Array.from({ length: Math.ceil(context / pageTokens) }, (_, block) => block);
    this.#pages = plainPages(this.#blocks.length, model.kv.groups);
    const pages = this.#pages.reduce((sum, { pageTable }) => sum + pageTable.length, 0);
    this.sparsePages = new SparsePages(model.kv, context, pages);
    const kvBytes = (pages + this.sparsePages.count) * model.kv.pageBytes;
    this.engine = new Engine({ model, backend, tokensMax, logitRowsMax: tokensMax, kvBytes });
    this.vocabulary = program.logits === undefined ? 0 : program.buffers[program.logits].columns;
    const create = (ops: readonly Op[], logits = false): Slice => {
      const part = subprogram(program, ops, logits);
      const { linears, vectors } = model;
      const bindings = { linears, vectors, tokensMax, logitRowsMax: tokensMax, contextMax: model.context };
      return { handle: backend.createProgram(part.program, bindings), ids: part.ids };
    };
    const { slices, layers } = cutAtAttention(program);
    this.#slices = slices.map((ops, index) => create(ops, index === layers.length));
    this.layers = layers.map(({ op, carried }) => ({ op, carried, attention: create([op]) }));
  }

  /** Prefills with the engine's attention. */
  prefill(tokens: readonly number[]): void {
    const { tokensMax } = this.engine;
    for (let start = 0; start < tokens.length; start += tokensMax)
      this.#finish(this.engine.run(this.#step(tokens.slice(start, start + tokensMax), start, 'none'), this.#abort));
  }

  /** (rows, vocabulary): logits after each of these tokens, all with the engine's attention. */
  logits(tokens: readonly number[], start: number, sparse: SparseStep = {}): Float32Array {
    this.#finish(this.engine.run({ ...this.#step(tokens, start, 'all'), ...sparse }, this.#abort));
    return this.engine.readLogits(tokens.length);
  }

  /** Computes tokens once more, to select what to keep. */
  select(tokens: readonly number[], start: number, selections: SparseStep['selections']): void {
    this.#finish(this.engine.run({ ...this.#step(tokens, start, 'none'), selections }, this.#abort));
  }

  /** (rows, vocabulary): logits after each of these tokens, with the attention of each layer replaced. */
  run(tokens: readonly number[], start: number, attend: Attend): Float32Array {
    const step = this.#step(tokens, start, 'all');
    const rows = tokens.length;
    for (const [layer, { op, attention, carried }] of this.layers.entries()) {
      const slice = this.#slices[layer];
      this.#runSlice(slice, step);
      const query = this.#read(slice, op.q, rows);
      const out = attend({ layer, op, start, rows, query }) ?? this.#attention(attention, op, step, query);
      const next = this.#slices[layer + 1];
      this.#write(next, op.out, rows, out);
      for (const id of carried) this.#write(next, id, rows, this.#read(slice, id, rows));
    }
    const last = this.#slices[this.layers.length];
    this.#runSlice(last, step);
    const { logits } = this.engine.model.compiled.program;
    if (logits === undefined) throw new Error('Cannot read logits: the program has no logits');
    return this.#read(last, logits, rows);
  }

  /** Copies K and V at positions from..to - 1 of a layer into the same positions of `into`. */
  readKeys(layer: number, from: number, to: number, into: LayerKeys): void {
    const { group, index } = this.layers[layer].op.layer;
    const { pageTable, layers } = this.#pages[group];
    const { kvHeads, headDim } = this.engine.model.kv;
    const half = kvHeads * pageTokens * headDim;
    for (let block = Math.floor(from / pageTokens); block * pageTokens < to; block++) {
      const page = this.engine.readPage(pageTable[block * layers + index]);
      const first = Math.max(from, block * pageTokens);
      const end = Math.min(to, (block + 1) * pageTokens);
      for (let head = 0; head < kvHeads; head++) {
        const at = (head * pageTokens + first - block * pageTokens) * headDim;
        const length = (end - first) * headDim;
        into.keys[head].set(page.subarray(at, at + length), first * headDim);
        into.values[head].set(page.subarray(half + at, half + at + length), first * headDim);
      }
    }
  }

  /** Frees programs and pages; the model stays. */
  close(): void {
    for (const { handle } of this.#slices) this.#backend.freeProgram(handle);
    for (const { attention } of this.layers) this.#backend.freeProgram(attention.handle);
    this.engine.close();
  }

  #step(tokens: readonly number[], start: number, logits: 'none' | 'all'): Step {
    return groupedStep([{ tokens, start, blocks: this.#blocks, logits }], this.#pages);
  }

  #attention(attention: Slice, op: AttentionOp, step: Step, query: Float32Array): Float32Array {
    this.#write(attention, op.q, step.tokens.length, query);
    this.#runSlice(attention, step);
    return this.#read(attention, op.out, step.tokens.length);
  }

  #runSlice({ handle }: Slice, step: Step): void {
    this.#finish(this.#backend.run(handle, this.engine.pool, step, this.#abort));
  }

  #finish({ kind }: { readonly kind: string }): void {
    if (kind !== 'done') throw new Error('Cannot run the model layer by layer: the step was aborted');
  }

  #read({ handle, ids }: Slice, buffer: BufferId, rows: number): Float32Array {
    return this.#backend.readBuffer(handle, idOf(ids, buffer), rows);
  }

  #write({ handle, ids }: Slice, buffer: BufferId, rows: number, values: Float32Array): void {
    this.#backend.writeBuffer(handle, idOf(ids, buffer), rows, values);
  }
}

function idOf(ids: ReadonlyMap<BufferId, BufferId>, buffer: BufferId): BufferId {
  const id = ids.get(buffer);
  if (id === undefined) throw new Error(`Cannot use buffer: ${buffer} is not part of these layers`);
  return id;
}

/** The ops before, between and after the attention ops. Each part waits for what it takes over from the part before. */
function cutAtAttention(program: Program): {
  readonly slices: readonly (readonly Op[])[];
  readonly layers: readonly Pick<LayerProgram, 'op' | 'carried'>[];
} {
  const live = liveBefore(program);
  const slices: Op[][] = [[]];
  const layers: Pick<LayerProgram, 'op' | 'carried'>[] = [];
  for (const [index, op] of program.ops.entries()) {
    const slice = slices[slices.length - 1];
    if (op.kind !== 'attention') {
      if (op.kind !== 'layerReady' && op.kind !== 'waitLayer') slice.push(op);
      continue;
    }
    if (op.stats !== undefined || op.slopes !== undefined)
      throw new Error('Cannot run the model layer by layer: its attention has ALiBi slopes or returns statistics');
    const carried = [...(live[index + 1] ?? [])].filter((id) => id !== op.out);
    if (carried.some((id) => program.buffers[id].kind !== 'f32'))
      throw new Error('Cannot run the model layer by layer: rounded rows are carried past an attention op');
    layers.push({ op, carried });
    slice.push(...carried.map((x): Op => ({ kind: 'rowsReady', x })));
    slices.push(carried.map((out): Op => ({ kind: 'waitRows', out })));
  }
  return { slices, layers };
}
