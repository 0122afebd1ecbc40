// The engine: a loaded model's program over one pool of KV pages.

import type { LayerSpan } from '../graph/pipeline-stage.ts';
import type { LayerRef } from '../graph/program.ts';
import type { Backend, KvPoolHandle, ProgramBindings, ProgramHandle, StepOutcome } from '../kernel/backend.ts';
import { NativeBackend, type StaggeredReplicas } from '../kernel/native/native.ts';
import type { Step } from '../util/step.ts';
import { type LoadedModel, layersOf } from './load-model.ts';
import { PipelineStage } from './pipeline-stage.ts';

export interface EngineOptions {
  readonly model: LoadedModel;
  readonly backend: Backend;
  /** Maximum tokens of a step. */
  readonly tokensMax: number;
  /** Maximum rows of a step that require logits. */
  readonly logitRowsMax: number;
  /** Memory of the KV pool; whole pages of it are used. */
  readonly kvBytes: number;
  /** Pages of each attention worker, for a model that leaves attention to them: `kvBytes` is not used then. */
  readonly pagesAtWorkers?: number;
}

export class Engine {
  readonly model: LoadedModel;
  readonly tokensMax: number;
  readonly logitRowsMax: number;
  /** Pages of the pool. */
  readonly pages: number;
  readonly #backend: Backend;
  readonly #bindings: ProgramBindings;
  readonly #program: ProgramHandle;
  /** Programs of further batches that run staggered. */
  readonly #batchPrograms: ProgramHandle[] = [];
  /** Handle of the KV pool. */
  readonly pool: KvPoolHandle;
  /** (layers of the model, in the order of computation): the group of each layer, and its index in the group. */
  readonly layers: readonly LayerRef[];

  /** @throws Error when the memory cannot hold one rBlock of each layer group */
  constructor(options: EngineOptions) {
    const { model, backend, tokensMax, logitRowsMax, kvBytes, pagesAtWorkers } = options;
    const { kvHeads, headDim, type, pageBytes, groups } = model.kv;
    const pages = pagesAtWorkers ?? Math.floor(kvBytes / pageBytes);
    const needed = groups.reduce((sum, { layers }) => sum + layers, 0);
    if (pages < needed) {
      throw new Error(
        `Cannot create the engine: ${kvBytes} bytes of KV memory hold ${pages} pages: ${needed} of ${pageBytes} bytes make one block`,
      );
    }
    this.model = model;
    this.tokensMax = tokensMax;
    this.logitRowsMax = logitRowsMax;
    this.pages = pages;
    this.#backend = backend;
    this.pool = backend.createKvPool({ pages, kvHeads, headDim, type, atWorkers: pagesAtWorkers !== undefined });
    const { linears, vectors, context } = model;
    this.#bindings = { linears, vectors, tokensMax, logitRowsMax, contextMax: context };
    this.layers = layersOf(model.compiled.program);
    this.#program = backend.createProgram(model.compiled.program, this.#bindings);
  }

  /** Runs one step synchronously. @param abort the words of `StepInterrupt`: any value but 0 in the first one ends the step between two ops as `aborted` */
  run(step: Step, abort: Int32Array): StepOutcome {
    return this.#withHidden(this.#program, step, this.#backend.run(this.#program, this.pool, step, abort));
  }

  /**
   * Runs the steps of several batches, each over links to attention workers of its own: while attention of one batch is
   * computed, the others compute their slices. The logits of later batches cannot be read. @param rotation replicas of
   * the model and the order of slices; undefined: this engine's backend runs all slices
   */
  runStaggered(steps: readonly Step[], abort: Int32Array, rotation?: StaggeredReplicas): readonly StepOutcome[] {
    const backend = this.#backend;
    if (!(backend instanceof NativeBackend))
      throw new Error('Cannot run steps staggered: attention workers need the native kernels');
    while (this.#batchPrograms.length + 1 < steps.length)
      this.#batchPrograms.push(backend.createProgram(this.model.compiled.program, this.#bindings));
    const runs = steps.map((step, batch) => ({
      program: batch === 0 ? this.#program : this.#batchPrograms[batch - 1],
      step,
    }));
    const outcomes = backend.runStaggered(this.pool, runs, abort, rotation);
    return runs.map(({ program, step }, i) => this.#withHidden(program, step, outcomes[i]));
  }

  /** Adds the hidden states that the step requires. */
  #withHidden(program: ProgramHandle, { hiddenRows, logitRows }: Step, outcome: StepOutcome): StepOutcome {
    const { hidden } = this.model.compiled.program;
    if (hiddenRows === undefined || hidden === undefined || outcome.kind !== 'done') return outcome;
    const values = this.#backend.readBuffer(program, hidden.buffer, logitRows.length);
    return { kind: 'done', result: { ...outcome.result, hidden: values } };
  }

  /** A separate program for a range of the layers over the same pages. The caller frees it. */
  pipelineStage(span: LayerSpan): PipelineStage {
    return new PipelineStage(this.#backend, this.pool, this.model, span, this.#bindings);
  }

  /** (rows, vocabulary): a copy of the logits of the last step, in the order of its `logitRows`. */
  readLogits(rows: number): Float32Array {
    const { logits } = this.model.compiled.program;
    if (logits === undefined) throw new Error('Cannot read logits: the program has no logits');
    return this.#backend.readBuffer(this.#program, logits, rows);
  }

  /** Canonical content of a page: (2, kvHeads, pageTokens, headDim), K first. */
  readPage(page: number): Float32Array {
    return this.#backend.readPage(this.pool, page);
  }

  writePage(page: number, values: Float32Array): void {
    this.#backend.writePage(this.pool, page, values);
  }

  /** Frees the program and the pool; the model's weights stay. */
  close(): void {
    for (const program of [this.#program, ...this.#batchPrograms]) this.#backend.freeProgram(program);
    this.#backend.freeKvPool(this.pool);
  }
}
