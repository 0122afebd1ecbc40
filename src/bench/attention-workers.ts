// Cost and gain of attention workers: overlap with earlier keys, staggered batches, and transport, on one core for each kind of worker.
import { Engine } from '../engine/engine.ts';
import { freeModel, type LoadedModel, loadModel } from '../engine/load-model.ts';
import { groupedStep, type PlainPages, plainPages } from '../engine/plain-step.ts';
import type { KvPoolHandle } from '../kernel/backend.ts';
import { loadNative } from '../kernel/native/addon.ts';
import { type AttentionForm, AttentionWorker, WorkerLink } from '../kernel/native/attention-workers.ts';
import { createNativeBackend, type NativeBackend } from '../kernel/native/native.ts';
import type { WorkerLinkCounts } from '../util/counts.ts';
import { pageTokens, type Step } from '../util/step.ts';
import { median, round } from './statistics.ts';

export interface AttentionWorkersBench {
  readonly model: string;
  /** Context lengths of a decode row, with and without overlap. */
  readonly contexts: readonly number[];
  /** Sequences of each of two staggered batches, at `staggeredContext` tokens each. */
  readonly batches: readonly number[];
  readonly staggeredContext: number;
  readonly repeats: number;
  readonly onProgress: (line: string) => void;
}

/** A decode step of one sequence over one attention worker: medians of alternating steps. */
export interface OverlapRow {
  readonly context: number;
  readonly overlapMs: number;
  /** The form of the paper: one partial of all earlier keys, and one of the new key. */
  readonly prevNewMs: number;
  /** Attention begins when K and V of the step have arrived. */
  readonly noOverlapMs: number;
  /** Time saved by the overlap, in percent of the step without it: medians over rounds. */
  readonly gainPercent: number;
  readonly prevNewGainPercent: number;
}

/** Decode steps of two batches: medians of alternating rounds. */
export interface StaggeredRow {
  readonly sequences: number;
  readonly context: number;
  /** Model part and attention part of a step of one batch. */
  readonly modelMs: number;
  readonly attentionMs: number;
  /** One batch after the other, and both staggered. */
  readonly inTurnMs: number;
  readonly staggeredMs: number;
  /** All sequences as one batch. */
  readonly oneBatchMs: number;
  /** One batch over staggered: median over rounds; what `serve --staggered-batches 2` gains. */
  readonly timesFasterThanOne: number;
  /** In turn over staggered: median over rounds; 2 at most. */
  readonly timesFaster: number;
}

export interface TransportRow {
  readonly transport: 'shared' | 'tcp';
  readonly bytesPerLayer: number;
  /** Time that a step waits for a layer of one key, of which the attention itself takes almost none. */
  readonly usPerLayer: number;
}

export interface AttentionWorkersReport {
  readonly isa: string;
  readonly overlap: readonly OverlapRow[];
  readonly staggered: readonly StaggeredRow[];
  readonly transport: readonly TransportRow[];
}

const [host, token] = ['127.0.0.1', 'bench'];
const batchesAtOnce = 2;

/** @throws Error if the kernels are not compiled, or the machine has one core */
export function benchAttentionWorkers(options: AttentionWorkersBench): AttentionWorkersReport {
  const native = loadNative();
  if (native === undefined) throw new Error('Cannot measure attention workers: the native kernels are not compiled');
  const cores = native.allowedCores();
  const [modelCore, attentionCore] = cores;
  if (modelCore === undefined || attentionCore === undefined)
    throw new Error(`Cannot measure attention workers: ${cores.length} cores are allowed, 2 are required`);
  const pin = (core: number) => native.setThreadAffinity(Int32Array.of(core));
  const { contexts, batches, staggeredContext, onProgress } = options;
  const tokens = Math.max(...contexts, batchesAtOnce * Math.max(...batches) * (staggeredContext + pageTokens));
  pin(attentionCore);
  const attentionBackend = createNativeBackend({ threads: 1 });
  pin(modelCore);
  const backend = createNativeBackend({ threads: 1 });
  const model = loadModel({ model: options.model, backend, attention: 'workers' });
  const setup = new Setup(
    model,
    backend,
    attentionBackend,
    tokens,
    () => pin(attentionCore),
    () => pin(modelCore),
  );
  try {
    const overlap = contexts.map((context) => {
      onProgress(`overlap at ${context} tokens`);
      return setup.overlap(context, options.repeats);
    });
    const staggered = batches.map((sequences) => {
      onProgress(`two batches of ${sequences}`);
      return setup.staggered(sequences, staggeredContext, options.repeats);
    });
    const transport = (['shared', 'tcp'] as const).map((way) => setup.transport(way, options.repeats));
    return { isa: backend.isa, overlap, staggered, transport };
  } finally {
    setup.close();
    freeModel(model, backend);
    backend.close();
    attentionBackend.close();
    native.setThreadAffinity(Int32Array.from(cores));
  }
}

/** One model worker and the pages of one attention worker, each on a core of its own. */
class Setup {
  readonly #model: LoadedModel;
  readonly #backend: NativeBackend;
  readonly #attentionBackend: NativeBackend;
  readonly #pool: KvPoolHandle;
  readonly #engine: Engine;
  readonly #pages: readonly PlainPages[];
  readonly #blocks: number;
  readonly #onAttentionCore: () => void;
  readonly #onModelCore: () => void;
  readonly #abort = new Int32Array(1);

  constructor(
    model: LoadedModel,
    backend: NativeBackend,
    attentionBackend: NativeBackend,
    tokens: number,
    onAttentionCore: () => void,
    onModelCore: () => void,
  ) {
    const { kvHeads, headDim, type, groups } = model.kv;
    this.#model = model;
    this.#backend = backend;
    this.#attentionBackend = attentionBackend;
    this.#onAttentionCore = onAttentionCore;
    this.#onModelCore = onModelCore;
    this.#blocks = Math.ceil(tokens / pageTokens) + 1;
    this.#pages = plainPages(this.#blocks, groups);
    const pages = this.#blocks * groups.reduce((sum, { layers }) => sum + layers, 0);
    this.#pool = attentionBackend.createKvPool({ pages, kvHeads, headDim, type });
    const kinds = Array.from({ length: 7 }, (_, kind) => pageValues(2 * kvHeads * pageTokens * headDim, kind));
    for (let page = 0; page < pages; page++) attentionBackend.writePage(this.#pool, page, kinds[page % kinds.length]);
    const limits = { tokensMax: 64, logitRowsMax: 64, kvBytes: 0 };
    this.#engine = new Engine({ model, backend, ...limits, pagesAtWorkers: pages });
  }

  overlap(context: number, repeats: number): OverlapRow {
    const forms = [[true], [true, 'prev-new'], [false]] as const;
    const sides = forms.map(([overlaps, form]) => this.#connect('shared', overlaps, 1, form));
    try {
      const steps = sides.map(({ links }) => this.#step(1, context, 0, links[0]));
      const times: number[][] = [[], [], []];
      for (let i = -warmUps; i < repeats; i++)
        for (const [side, step] of steps.entries()) {
          const ms = this.#run([step]);
          if (i >= 0) times[side].push(ms);
        }
      const [on, prevNew, off] = times;
      const gain = (side: readonly number[]) => round(100 * (median(side.map((ms, i) => 1 - ms / off[i])) ?? 0));
      return {
        ...{ context, overlapMs: middle(on), prevNewMs: middle(prevNew), noOverlapMs: middle(off) },
        ...{ gainPercent: gain(on), prevNewGainPercent: gain(prevNew) },
      };
    } finally {
      for (const { close } of sides) close();
    }
  }

  staggered(sequences: number, context: number, repeats: number): StaggeredRow {
    const { links, close } = this.#connect('shared', true, batchesAtOnce);
    try {
      const steps = links.map((link, batch) => this.#step(sequences, context, batch * sequences, link));
      const whole = this.#step(batchesAtOnce * sequences, context, 0, links[0]);
      const [inTurn, together, asOne]: [number[], number[], number[]] = [[], [], []];
      let waited = 0;
      let attention = 0;
      for (let i = -warmUps; i < repeats; i++) {
        const before = sumOf(links);
        const alone = steps.reduce((sum, step) => sum + this.#run([step]), 0);
        const after = sumOf(links);
        const both = this.#run(steps);
        const one = this.#run([whole]);
        if (i < 0) continue;
        waited += after.waitSeconds - before.waitSeconds;
        attention += after.earlySeconds + after.lateSeconds - before.earlySeconds - before.lateSeconds;
        inTurn.push(alone);
        together.push(both);
        asOne.push(one);
      }
      const perStep = (seconds: number) => (1000 * seconds) / (repeats * batchesAtOnce);
      const stepMs = (median(inTurn) ?? 0) / batchesAtOnce;
      return {
        ...{ sequences, context, modelMs: round(stepMs - perStep(waited)), attentionMs: round(perStep(attention)) },
        ...{ inTurnMs: middle(inTurn), staggeredMs: middle(together), oneBatchMs: middle(asOne) },
        timesFaster: round(median(inTurn.map((ms, i) => ms / together[i])) ?? 0),
        timesFasterThanOne: round(median(asOne.map((ms, i) => ms / together[i])) ?? 0),
      };
    } finally {
      close();
    }
  }

  transport(transport: 'shared' | 'tcp', repeats: number): TransportRow {
    const { links, close } = this.#connect(transport, true, 1);
    try {
      const step = this.#step(1, 1, 0, links[0]);
      const layers = this.#engine.layers.length;
      const waits: number[] = [];
      let bytes = 0;
      for (let i = -warmUps; i < 5 * repeats; i++) {
        const before = sumOf(links);
        this.#run([step]);
        const after = sumOf(links);
        if (i < 0) continue;
        const computed = after.earlySeconds + after.lateSeconds - before.earlySeconds - before.lateSeconds;
        waits.push((1e6 * (after.waitSeconds - before.waitSeconds - computed)) / layers);
        bytes = after.bytesOut + after.bytesIn - before.bytesOut - before.bytesIn;
      }
      return { transport, bytesPerLayer: Math.round(bytes / layers), usPerLayer: middle(waits) };
    } finally {
      close();
    }
  }

  close(): void {
    this.#engine.close();
    this.#attentionBackend.freeKvPool(this.#pool);
  }

  /** A worker on its core, and a link for each batch. */
  #connect(transport: 'shared' | 'tcp', overlaps: boolean, batches: number, form?: AttentionForm) {
    const { type, kvHeads, headDim } = this.#model.kv;
    this.#onAttentionCore();
    const local = { host, token, transport } as const;
    const worker = new AttentionWorker({ backend: this.#attentionBackend, pool: this.#pool, ...local, overlaps });
    this.#onModelCore();
    const shard = { type, kvHeads, headDim };
    const { address } = worker;
    const open = () => new WorkerLink({ backend: this.#backend, shard, address, token, transport, form });
    const links = Array.from({ length: batches }, open);
    const close = (): void => {
      for (const link of links) link.close();
      worker.close();
    };
    return { links, close };
  }

  /** Decodes the last token of sequences from `first` on. */
  #step(sequences: number, context: number, first: number, link: WorkerLink): Step {
    const blocks = Math.ceil(context / pageTokens);
    const rows = Array.from({ length: sequences }, (_, i) => ({
      tokens: [i],
      start: context - 1,
      blocks: Array.from({ length: blocks }, (_, block) => (first + i) * blocks + block),
      logits: 'last' as const,
    }));
    return { ...groupedStep(rows, this.#pages), attentionWorkers: Int32Array.of(link.handle) };
  }

  /** @returns milliseconds */
  #run(steps: readonly Step[]): number {
    const start = performance.now();
    const outcomes = this.#engine.runStaggered(steps, this.#abort);
    const ms = performance.now() - start;
    for (const outcome of outcomes)
      if (outcome.kind !== 'done' || outcome.result.failedSequences.length > 0)
        throw new Error('Cannot measure attention workers: a step was not answered');
    return ms;
  }
}

const warmUps = 2;

function middle(values: readonly number[]): number {
  return round(median(values) ?? 0);
}

function sumOf(links: readonly WorkerLink[]): Omit<WorkerLinkCounts, 'calls'> {
  const sum = { bytesOut: 0, bytesIn: 0, waitSeconds: 0, earlySeconds: 0, lateSeconds: 0 };
  for (const { counts } of links)
    for (const name of Object.keys(sum) as (keyof typeof sum)[]) sum[name] += counts[name];
  return sum;
}

/** Values that are neither subnormal nor overflow. */
function pageValues(count: number, kind: number): Float32Array {
  return Float32Array.from({ length: count }, (_, i) => Math.sin((1.3 + kind / 10) * i));
}
