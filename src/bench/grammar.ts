// `kvasir bench grammar`: decode steps with masks of a grammar beside the same steps without, in turns.
import { Engine } from '../engine/engine.ts';
import type { InputChoice, WeightsForm } from '../engine/forms.ts';
import { freeModel, type LoadedModel, loadModel } from '../engine/load-model.ts';
import { groupedStep, type PlainPages, plainPages } from '../engine/plain-step.ts';
import type { Backend } from '../kernel/backend.ts';
import { GrammarMatchers } from '../runtime/grammars/grammar-matchers.ts';
import type { KvType } from '../util/kv-type.ts';
import { pageTokens, type Step } from '../util/step.ts';
import { median } from './statistics.ts';

export interface GrammarBenchOptions {
  readonly model: string;
  readonly weights: WeightsForm;
  readonly inputs: InputChoice;
  readonly kvType?: KvType | undefined;
  readonly batch: readonly number[];
  /** Cached tokens of every sequence before the first timed step. */
  readonly depth: number;
  /** Steps timed of each kind. */
  readonly generate: number;
  /** JSON schema of the output. */
  readonly schema: string;
  /** Module of the grammar threads. */
  readonly entry: URL;
  readonly onProgress?: (line: string) => void;
}

export interface GrammarBenchRow {
  readonly batch: number;
  readonly freeMs: number;
  readonly maskedMs: number;
  /** Median of the ratios of neighbouring steps. */
  readonly ratio: number;
  /** Waiting for the masks of a step, part of `maskedMs`. */
  readonly maskMs: number;
}

/** Medians of single steps. @throws Error if the grammar cannot be compiled, or a row exceeds the positions of the model */
export async function benchGrammar(
  backend: Backend,
  options: GrammarBenchOptions,
): Promise<{ readonly model: string; readonly isa: string; readonly rows: readonly GrammarBenchRow[] }> {
  const model = loadModel({ backend, ...options });
  try {
    const rows: GrammarBenchRow[] = [];
    for (const batch of options.batch) {
      const bench = new GrammarBench(model, backend, batch, options);
      try {
        const row = await bench.run();
        options.onProgress?.(`decode of ${batch}: ${row.freeMs} ms, ${row.maskedMs} ms with masks, ratio ${row.ratio}`);
        rows.push(row);
      } finally {
        await bench.close();
      }
    }
    return { model: model.id, isa: backend.isa, rows };
  } finally {
    freeModel(model, backend);
  }
}

/** One sequence of a batch: a request with a grammar, which begins anew when its output ends. */
interface Constrained {
  request: string;
  readonly output: number[];
}

class GrammarBench {
  readonly #options: GrammarBenchOptions;
  readonly #batch: number;
  readonly #engine: Engine;
  readonly #blocks: number;
  readonly #pages: readonly PlainPages[];
  readonly #matchers: GrammarMatchers;
  readonly #sequences: readonly Constrained[];
  readonly #eosIds: ReadonlySet<number>;
  readonly #abort = new Int32Array(1);
  readonly #faults = new Map<string, string | undefined>();
  #requests = 0;

  constructor(model: LoadedModel, backend: Backend, batch: number, options: GrammarBenchOptions) {
    const { depth, generate } = options;
    const { config, kv } = model;
    this.#options = options;
    this.#batch = batch;
    this.#blocks = Math.ceil((depth + generate + 2) / pageTokens);
    const layers = kv.groups.reduce((sum, group) => sum + group.layers, 0);
    const kvBytes = batch * this.#blocks * layers * kv.pageBytes;
    this.#engine = new Engine({ model, backend, tokensMax: batch, logitRowsMax: batch, kvBytes });
    this.#pages = plainPages(batch * this.#blocks, kv.groups);
    this.#matchers = new GrammarMatchers(options.entry, options.model, config.vocabSize, batch, () => {});
    this.#sequences = Array.from({ length: batch }, () => ({ request: '', output: [] }));
    this.#eosIds = new Set(config.eosIds);
  }

  async run(): Promise<GrammarBenchRow> {
    for (const sequence of this.#sequences) await this.#begin(sequence);
    const times = { free: [] as number[], masked: [] as number[], mask: [] as number[], ratio: [] as number[] };
    for (let i = 0; i <= this.#options.generate; i++) {
      const plan = this.#step(this.#options.depth + i);
      let maskMs = 0;
      let tokens = new Int32Array(0);
      const maskedMs = this.#time(() => {
        const startMs = performance.now();
        let masked = this.#matchers.masked(plan);
        for (; masked.unmasked !== undefined; masked = this.#matchers.masked(plan)) this.#matchers.poll();
        maskMs = performance.now() - startMs;
        tokens = this.#run(masked.step);
      });
      const freeMs = this.#time(() => this.#run(plan));
      this.#matchers.sampled(plan, tokens);
      for (const [s, sequence] of this.#sequences.entries()) {
        if (this.#eosIds.has(tokens[s])) await this.#begin(sequence);
        else sequence.output.push(tokens[s]);
      }
      // The first step warms buffers.
      if (i === 0) continue;
      times.free.push(freeMs);
      times.masked.push(maskedMs);
      times.mask.push(maskMs);
      times.ratio.push(maskedMs / freeMs);
    }
    const of = (values: readonly number[]): number => Math.round((median(values) ?? 0) * 1000) / 1000;
    const { free, masked, mask, ratio } = times;
    return { batch: this.#batch, freeMs: of(free), maskedMs: of(masked), ratio: of(ratio), maskMs: of(mask) };
  }

  async close(): Promise<void> {
    await this.#matchers.close();
    this.#engine.close();
  }

  /** A new request of a sequence; its output is compiled and empty. */
  async #begin(sequence: Constrained): Promise<void> {
    if (sequence.request !== '') this.#matchers.release(sequence.request);
    const request = `r${this.#requests++}`;
    sequence.request = request;
    sequence.output.length = 0;
    this.#matchers.compile(request, { kind: 'json_schema', text: this.#options.schema });
    while (!this.#faults.has(request)) {
      for (const { id, fault } of this.#matchers.poll()) this.#faults.set(id, fault);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    const fault = this.#faults.get(request);
    if (fault !== undefined) throw new Error(`Cannot bench: the grammar cannot be compiled: ${fault}`);
  }

  #step(position: number): Step {
    const sequences = this.#sequences.map(({ output }, s) => ({
      tokens: [output.at(-1) ?? (s * 7919 + 13) % this.#engine.model.config.vocabSize],
      start: position,
      blocks: Array.from({ length: this.#blocks }, (_, b) => s * this.#blocks + b),
      logits: 'last' as const,
    }));
    const step = groupedStep(sequences, this.#pages);
    step.sampling.topLogprobs.fill(0);
    const grammarRows = this.#sequences.map(({ request, output }, s) => {
      return { row: s, sequence: s, request, output: Int32Array.from(output) };
    });
    return { ...step, grammarRows };
  }

  #run(step: Step): Int32Array<ArrayBuffer> {
    const outcome = this.#engine.run(step, this.#abort);
    if (outcome.kind !== 'done') throw new Error('Cannot bench: the step was aborted');
    if (outcome.result.failed.includes(2)) throw new Error('Cannot bench: the grammar allows no token');
    return Int32Array.from(outcome.result.tokens);
  }

  #time(run: () => void): number {
    const startMs = performance.now();
    run();
    return performance.now() - startMs;
  }
}
