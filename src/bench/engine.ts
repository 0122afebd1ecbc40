// `kvasir bench engine`: prefill of one prompt and decode steps by batch and depth, without scheduler or HTTP.
import { Engine } from '../engine/engine.ts';
import type { InputChoice, WeightsForm } from '../engine/forms.ts';
import { freeModel, type LoadedModel, loadModel } from '../engine/load-model.ts';
import { groupedStep, type PlainPages, type PlainSequence, plainPages } from '../engine/plain-step.ts';
import type { InputForm } from '../graph/program.ts';
import type { Backend } from '../kernel/backend.ts';
import type { KvType } from '../util/kv-type.ts';
import { pageTokens } from '../util/step.ts';
import { median, round } from './statistics.ts';

export interface EngineBenchOptions {
  readonly model: string;
  readonly weights: WeightsForm;
  readonly inputs: InputChoice;
  readonly kvType?: KvType | undefined;
  /** Prompt tokens, prefilled in one step. */
  readonly prompt: number;
  /** Steps timed for each decode row. */
  readonly generate: number;
  readonly batch: readonly number[];
  /** Cached tokens of every sequence before the first timed step. */
  readonly depth: readonly number[];
  /** Prefills timed. */
  readonly repeats: number;
  /** Receives progress lines. */
  readonly onProgress?: (line: string) => void;
}

export interface DecodeRow {
  readonly batch: number;
  readonly depth: number;
  readonly msPerStep: number;
  readonly tokensPerSecond: number;
}

export interface EngineBenchReport {
  readonly model: string;
  readonly isa: string;
  readonly threads: number;
  readonly weights: WeightsForm;
  readonly inputs: InputForm;
  readonly kvType: KvType;
  readonly weightsBytes: number;
  readonly prefill: { readonly tokens: number; readonly ms: number; readonly tokensPerSecond: number };
  readonly decode: readonly DecodeRow[];
}

/** Medians of single steps. @throws Error if a row exceeds the positions of the model or the memory */
export function benchEngine(backend: Backend, options: EngineBenchOptions): EngineBenchReport {
  const { prompt, generate, repeats, onProgress } = options;
  const bench = new EngineBench(backend, options);
  try {
    const prefillMs = medianOf(bench.prefill(prompt, repeats));
    const prefill = { tokens: prompt, ms: round(prefillMs), tokensPerSecond: round((1000 * prompt) / prefillMs) };
    onProgress?.(`prefill of ${prompt} tokens: ${prefill.ms} ms, ${prefill.tokensPerSecond} tokens/s`);
    const decode = options.depth.flatMap((depth) =>
      options.batch.map((batch) => {
        const ms = medianOf(bench.decode(batch, depth, generate));
        const row = { batch, depth, msPerStep: round(ms), tokensPerSecond: round((1000 * batch) / ms) };
        onProgress?.(`decode of ${batch} at depth ${depth}: ${row.msPerStep} ms, ${row.tokensPerSecond} tokens/s`);
        return row;
      }),
    );
    return { ...bench.description, prefill, decode };
  } finally {
    bench.close();
  }
}

function medianOf(values: readonly number[]): number {
  const middle = median(values);
  if (middle === undefined) throw new Error('Cannot bench: no steps were requested');
  return middle;
}

/** Minimal cost of a step: bytes of memory, each counted once, and arithmetic operations. */
export interface StepCost {
  readonly bytes: number;
  readonly operations: number;
}

/** A loaded model for timed steps in any order. */
export class EngineBench {
  readonly #backend: Backend;
  readonly #model: LoadedModel;

  constructor(backend: Backend, options: Pick<EngineBenchOptions, 'model' | 'weights' | 'inputs' | 'kvType'>) {
    this.#backend = backend;
    this.#model = loadModel({ backend, ...options });
  }

  get description(): Omit<EngineBenchReport, 'prefill' | 'decode'> {
    const { isa, threads } = this.#backend;
    const { id, weights, inputs, kv, weightsBytes } = this.#model;
    return { model: id, isa, threads, weights, inputs, kvType: kv.type, weightsBytes };
  }

  /** Milliseconds of each of `repeats` steps that compute the whole prompt and the logits of its last token. */
  prefill(tokens: number, repeats: number): number[] {
    return this.#withScene(1, tokens, tokens, (scene) => scene.prefill(tokens, repeats));
  }

  /** Milliseconds of each of `steps` steps that decode one token of each of `batch` sequences, greedily. */
  decode(batch: number, depth: number, steps: number): number[] {
    return this.#withScene(batch, depth + steps + 1, batch, (scene) => scene.decode(batch, depth, steps));
  }

  /** Cost of a prefill step: every weight once, and the written keys and values. */
  prefillCost(tokens: number): StepCost {
    return this.#cost(tokens, 1, (tokens * (tokens + 1)) / 2, tokens);
  }

  /** Cost of a decode step: every weight once, and the keys and values of every sequence. */
  decodeCost(batch: number, depth: number): StepCost {
    const keys = batch * (depth + 1);
    return this.#cost(batch, batch, keys, keys);
  }

  close(): void {
    freeModel(this.#model, this.#backend);
  }

  /** @param pairs (row, key) pairs of one layer @param cached tokens with moved keys and values */
  #cost(rows: number, logitRows: number, pairs: number, cached: number): StepCost {
    const { compiled, linears, kv } = this.#model;
    const { ops, logits } = compiled.program;
    let bytes = 0;
    let operations = 0;
    for (const op of ops) {
      if (op.kind === 'attention') {
        operations += 4 * pairs * op.heads * op.headDim;
        bytes += (cached / pageTokens) * kv.pageBytes;
      } else if (op.kind === 'linear') {
        const { columns, segments } = compiled.linears[op.weight] ?? { columns: 0, segments: [] };
        const weights = columns * segments.reduce((sum, segment) => sum + segment.rows, 0);
        operations += 2 * weights * (op.out === logits ? logitRows : rows);
        bytes += this.#backend.linearBytes(linears[op.weight] ?? 0);
      }
    }
    return { bytes, operations };
  }

  /** @param positions of each of `sequences` sequences, which fill the pool */
  #withScene<T>(sequences: number, positions: number, tokensMax: number, use: (scene: Scene) => T): T {
    const model = this.#model;
    if (positions > model.context) {
      throw new Error(`Cannot bench: a row needs ${positions} positions, model ${model.id} has ${model.context}`);
    }
    const blocks = Math.ceil(positions / pageTokens);
    const layers = model.kv.groups.reduce((sum, group) => sum + group.layers, 0);
    const kvBytes = sequences * blocks * layers * model.kv.pageBytes;
    const engine = new Engine({ model, backend: this.#backend, tokensMax, logitRowsMax: sequences, kvBytes });
    try {
      return use(new Scene(engine, sequences, blocks));
    } finally {
      engine.close();
    }
  }
}

/** Sequences with pages of their own in an engine. The first step of each kind warms buffers and is not timed. */
class Scene {
  readonly #engine: Engine;
  readonly #blocks: number;
  readonly #pages: readonly PlainPages[];
  readonly #abort = new Int32Array(1);

  constructor(engine: Engine, sequences: number, blocks: number) {
    this.#engine = engine;
    this.#blocks = blocks;
    this.#pages = plainPages(sequences * blocks, engine.model.kv.groups);
  }

  prefill(tokens: number, repeats: number): number[] {
    const prompt = Int32Array.from({ length: tokens }, (_, i) => this.#token(i));
    const times = Array.from({ length: repeats + 1 }, () => this.#time([this.#sequence(0, prompt, 0)]));
    return times.slice(1);
  }

  decode(batch: number, depth: number, steps: number): number[] {
    this.#fillPages();
    const times = Array.from({ length: steps + 1 }, (_, i) =>
      this.#time(Array.from({ length: batch }, (_, s) => this.#sequence(s, [this.#token(7 * s + i)], depth + i))),
    );
    return times.slice(1);
  }

  #sequence(index: number, tokens: ArrayLike<number>, start: number): PlainSequence {
    const blocks = Array.from({ length: this.#blocks }, (_, b) => index * this.#blocks + b);
    return { tokens, start, blocks, logits: 'last' };
  }

  #time(sequences: readonly PlainSequence[]): number {
    const step = groupedStep(sequences, this.#pages);
    step.sampling.topLogprobs.fill(0);
    const startMs = performance.now();
    const outcome = this.#engine.run(step, this.#abort);
    const ms = performance.now() - startMs;
    if (outcome.kind !== 'done') throw new Error('Cannot bench: the step was aborted');
    return ms;
  }

  /** Writes values to every page: untouched pages might not be backed by memory. */
  #fillPages(): void {
    const { kvHeads, headDim } = this.#engine.model.kv;
    const values = Float32Array.from({ length: 2 * kvHeads * pageTokens * headDim }, (_, i) => Math.sin(1.7 * i));
    for (let page = 0; page < this.#engine.pages; page++) this.#engine.writePage(page, values);
  }

  /** Ids spread over the vocabulary. */
  #token(i: number): number {
    return (i * 7919 + 13) % this.#engine.model.config.vocabSize;
  }
}
