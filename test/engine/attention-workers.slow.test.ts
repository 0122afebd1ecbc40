// A model worker and its attention workers: in every form and on every instruction set, the logits equal those of one
// instance bit for bit, for prefill in chunks, decode and batches of both.
import { once } from 'node:events';
import { Worker as Thread } from 'node:worker_threads';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { replicasFor, rotation } from '../../src/core/attention-workers/rotation.ts';
import { Engine } from '../../src/engine/engine.ts';
import type { ModelForms } from '../../src/engine/forms.ts';
import { freeModel, type LoadedModel, loadModel } from '../../src/engine/load-model.ts';
import { groupedStep, type PlainSequence, plainPages } from '../../src/engine/plain-step.ts';
import type { KvPoolHandle, KvPoolSpec, StepOutcome } from '../../src/kernel/backend.ts';
import type { Transport } from '../../src/kernel/native/addon.ts';
import { type AttentionForm, AttentionWorker, WorkerLink } from '../../src/kernel/native/attention-workers.ts';
import { createNativeBackend, type NativeBackend, type NativeIsa } from '../../src/kernel/native/native.ts';
import type { Step } from '../../src/util/step.ts';
import { nativeBackends } from './backends.ts';
import { familySpecs, ModelFolder, oddSpec } from './models.ts';
import { bitRows, blocksFor, someTokens } from './play.ts';

const folder = new ModelFolder();
afterAll(() => folder.remove());

const blocksMost = 80;
const token = 'a secret';

/** A worker with threads and pages of its own, and the model worker's link to it. */
class Worker {
  readonly #backend: NativeBackend;
  readonly #modelBackend: NativeBackend;
  readonly #shard: Pick<KvPoolSpec, 'type' | 'kvHeads' | 'headDim'>;
  readonly #pages: number;
  readonly #transport: Transport;
  readonly #form: AttentionForm;
  #pool: KvPoolHandle;
  worker: AttentionWorker;
  link: WorkerLink;

  /** Of the link; undefined: that of `WorkerLink`. */
  readonly #deadlineMs: number | undefined;

  /** @param workers that share the KV heads */
  constructor(
    model: LoadedModel,
    modelBackend: NativeBackend,
    workers: number,
    pages: number,
    {
      transport,
      form,
      deadlineMs,
    }: Pick<ClusterOptions, 'deadlineMs'> & Required<Pick<ClusterOptions, 'transport' | 'form'>>,
  ) {
    this.#deadlineMs = deadlineMs;
    this.#backend = createNativeBackend({ threads: 2, isa: modelBackend.isa });
    this.#modelBackend = modelBackend;
    this.#shard = { type: model.kv.type, kvHeads: model.kv.kvHeads / workers, headDim: model.kv.headDim };
    this.#pages = pages;
    this.#transport = transport;
    this.#form = form;
    this.#pool = this.#createPool();
    this.worker = this.#createWorker();
    this.link = this.#createLink();
  }

  /** Ends the worker and loses its pages. */
  end(): void {
    this.worker.close();
    this.#backend.freeKvPool(this.#pool);
  }

  /** Begins a new worker after `end`. */
  begin(): void {
    this.link.close();
    this.#pool = this.#createPool();
    this.worker = this.#createWorker();
    this.link = this.#createLink();
  }

  close(): void {
    this.link.close();
    this.end();
    this.#backend.close();
  }

  #createPool(): KvPoolHandle {
    return this.#backend.createKvPool({ ...this.#shard, pages: this.#pages });
  }

  #createWorker(): AttentionWorker {
    const options = { host: '127.0.0.1', token, transport: this.#transport };
    return new AttentionWorker({ backend: this.#backend, pool: this.#pool, ...options });
  }

  /** One more link, for another batch. */
  openLink(): WorkerLink {
    return this.#createLink();
  }

  #createLink(): WorkerLink {
    const options = {
      ...{ address: this.worker.address, token, transport: this.#transport, form: this.#form },
      deadlineMs: this.#deadlineMs,
    };
    return new WorkerLink({ backend: this.#modelBackend, shard: this.#shard, ...options });
  }
}

interface ClusterOptions {
  /** 0: one instance that computes attention itself. */
  readonly workers: number;
  readonly transport?: Transport;
  readonly partition?: 'heads' | 'requests';
  readonly form?: AttentionForm;
  /** Model replicas beside the first. */
  readonly replicas?: number;
  /** Of the links, in milliseconds; undefined: that of `WorkerLink`. */
  readonly deadlineMs?: number | undefined;
}

class Cluster {
  readonly #partition: 'heads' | 'requests';
  readonly replicas: readonly NativeBackend[];
  readonly #backend: NativeBackend;
  readonly #model: LoadedModel;
  readonly workers: readonly Worker[];
  readonly engine: Engine;

  constructor(path: string, isa: NativeIsa, forms: ModelForms, options: ClusterOptions) {
    const { workers, transport = 'auto', partition = 'heads', form = 'ranges', replicas = 0, deadlineMs } = options;
    this.#partition = partition;
    this.replicas = Array.from({ length: replicas }, () => createNativeBackend({ threads: 1, isa }));
    this.#backend = createNativeBackend({ threads: 2, isa });
    this.#model = loadModel({
      model: path,
      backend: this.#backend,
      ...forms,
      attention: workers > 0 ? 'workers' : 'pages',
    });
    const pages = blocksMost * this.#model.kv.groups.reduce((sum, { layers }) => sum + layers, 0);
    this.workers = Array.from(
      { length: workers },
      () =>
        new Worker(this.#model, this.#backend, partition === 'heads' ? workers : 1, pages, {
          transport,
          form,
          deadlineMs,
        }),
    );
    const kvBytes = pages * this.#model.kv.pageBytes;
    const pagesAtWorkers = partition === 'heads' ? pages : workers * pages;
    this.engine = new Engine({
      ...{ model: this.#model, backend: this.#backend, tokensMax: 800, logitRowsMax: 8, kvBytes },
      ...(workers > 0 && { pagesAtWorkers }),
    });
  }

  get handles(): Int32Array {
    return Int32Array.from(this.workers, ({ link }) => link.handle);
  }

  stepOf(sequences: readonly PlainSequence[]): Step {
    const { groups } = this.#model.kv;
    if (this.#partition === 'heads') return groupedStep(sequences, plainPages(blocksMost, groups));
    const perWorker = this.engine.pages / this.workers.length;
    const tables = this.workers.map((_, worker) =>
      plainPages(blocksMost, groups).map(({ pageTable }) => pageTable.map((page) => page + worker * perWorker)),
    );
    const joined = groups.map((group, g) => ({
      ...group,
      pageTable: Int32Array.from(tables.flatMap((table) => [...(table[g] ?? [])])),
    }));
    const step = groupedStep(sequences, joined);
    // A sequence's blocks choose its worker.
    const sequenceWorkers = Int32Array.from(sequences, ({ blocks }) => Math.floor((blocks[0] ?? 0) / blocksMost));
    return { ...step, sequenceWorkers };
  }

  run(sequences: readonly PlainSequence[], abort: Int32Array = new Int32Array(1)): StepOutcome {
    const attentionWorkers = this.handles;
    return this.engine.run(
      { ...this.stepOf(sequences), ...(attentionWorkers.length > 0 && { attentionWorkers }) },
      abort,
    );
  }

  /** Tokens and the bits of all log-probabilities of a step that is done. */
  logprobs(outcome: StepOutcome): unknown {
    if (outcome.kind !== 'done') throw new Error('the step was aborted');
    const { tokens, logprobs, topTokens, topLogprobs, failedSequences } = outcome.result;
    return { tokens, logprobs, topTokens, topLogprobs, failedSequences };
  }

  rows(sequences: readonly PlainSequence[]): Uint32Array[] {
    const outcome = this.run(sequences);
    if (outcome.kind !== 'done') throw new Error('the step was aborted');
    expect(outcome.result.failedSequences).toEqual(new Int32Array(0));
    const { length } = outcome.result.tokens;
    return bitRows(this.engine.readLogits(length), length);
  }

  close(): void {
    this.engine.close();
    for (const worker of this.workers) worker.close();
    for (const replica of this.replicas) replica.close();
    freeModel(this.#model, this.#backend);
    this.#backend.close();
  }
}

const bf16Forms: ModelForms = { weights: 'bf16', inputs: 'bf16' };
const forms: readonly ModelForms[] = [{ weights: 'f32', inputs: 'f32' }, bf16Forms, { weights: 'q4', inputs: 'int8' }];
const q8Forms: ModelForms = { weights: 'q4', inputs: 'i16', kvType: 'q8' };

/**
 * A long sequence in chunks beside a short one that decodes: the bits of every row of logits. @param apart blocks
 * between those of both
 */
function play(cluster: Cluster, vocabulary: number, tokens: number, apart = 0): Uint32Array[] {
  const [long, short] = [someTokens(tokens, vocabulary, 4), someTokens(60, vocabulary, 9)];
  const [longBlocks, shortBlocks] = [blocksFor(tokens, 3), blocksFor(60, apart)];
  const all: Uint32Array[] = [];
  const sizes = [Math.floor(tokens * 0.4), 100, 37, 1, 1, Math.floor(tokens * 0.3), 1];
  let start = 0;
  for (const [step, size] of sizes.entries()) {
    const beside = { tokens: short.slice(step, step + 1), start: step, blocks: shortBlocks, logits: 'last' } as const;
    const chunk = { tokens: long.slice(start, start + size), start, blocks: longBlocks, logits: 'last' } as const;
    all.push(...cluster.rows([beside, chunk]));
    start += size;
  }
  return all;
}

const specs = [oddSpec, ...familySpecs];
for (const { name } of nativeBackends) {
  const isa = name as NativeIsa;
  // The families differ in what surrounds attention: one instruction set and one form show it.
  const isBest = name === nativeBackends.at(-1)?.name;
  for (const spec of isBest ? specs : [oddSpec]) {
    const held = spec !== oddSpec ? [bf16Forms] : isBest ? [...forms, q8Forms] : forms;
    test.each(held)(`${spec.architecture} on ${name}, weights $weights, inputs $inputs, KV $kvType`, (form) => {
      const path = folder.huggingFace(spec, 'f32');
      const tokens = Math.min(1_700, spec.maxPositions);
      const bitsOf = (options: ClusterOptions) => {
        const cluster = new Cluster(path, isa, form, options);
        try {
          return play(cluster, spec.vocabSize, tokens, options.partition === 'requests' ? blocksMost : 0);
        } finally {
          cluster.close();
        }
      };
      const expected = bitsOf({ workers: 0 });
      expect(bitsOf({ workers: 1 })).toEqual(expected);
      expect(bitsOf({ workers: 2, transport: 'tcp' })).toEqual(expected);
      expect(bitsOf({ workers: 3, partition: 'requests' })).toEqual(expected);
    });
  }
}

/** Largest difference of logits, over the largest logit. */
function difference(rows: readonly Uint32Array[], expected: readonly Uint32Array[]): number {
  let [most, largest] = [0, 0];
  for (const [i, row] of rows.entries()) {
    const [values, oracle] = [row, expected[i]].map(
      (bits) => new Float32Array(bits.buffer, bits.byteOffset, bits.length),
    );
    for (const [j, value] of values.entries()) {
      most = Math.max(most, Math.abs(value - oracle[j]));
      largest = Math.max(largest, Math.abs(oracle[j]));
    }
  }
  return most / largest;
}

describe.skipIf(nativeBackends.length === 0)('the form prev-new (needs the native kernels)', () => {
  const isa = nativeBackends.at(-1)?.name as NativeIsa;
  test.each([
    [{ weights: 'f32', inputs: 'f32' } as const, 2e-5],
    [bf16Forms, 2e-2],
    [q8Forms, 2e-3],
  ])('differs from one instance by less than a bound, for every architecture in one form: %o', (form, bound) => {
    for (const spec of form === bf16Forms ? specs : [oddSpec]) {
      const path = folder.huggingFace(spec, 'f32');
      const tokens = Math.min(1_700, spec.maxPositions);
      const logitsOf = (options: ClusterOptions) => {
        const cluster = new Cluster(path, isa, form, options);
        try {
          return play(cluster, spec.vocabSize, tokens, options.partition === 'requests' ? blocksMost : 0);
        } finally {
          cluster.close();
        }
      };
      const expected = logitsOf({ workers: 0 });
      const byHeads = logitsOf({ workers: 2, form: 'prev-new' });
      const byRequests = logitsOf({ workers: 2, form: 'prev-new', partition: 'requests' });
      expect(difference(byHeads, expected)).toBeLessThan(bound);
      // Each head of a sequence is computed alone.
      expect(byRequests).toEqual(byHeads);
    }
  });
});

describe.skipIf(nativeBackends.length === 0)('attention workers (need the native kernels)', () => {
  const isa = nativeBackends.at(-1)?.name as NativeIsa;
  const form = bf16Forms;
  let cluster: Cluster;
  let single: Cluster;
  beforeAll(() => {
    const path = folder.huggingFace(oddSpec, 'f32');
    cluster = new Cluster(path, isa, form, { workers: 2 });
    single = new Cluster(path, isa, form, { workers: 0 });
  });
  afterAll(() => {
    cluster.close();
    single.close();
  });
  const prompt = (count: number) => someTokens(count, oddSpec.vocabSize, 5);
  const sequence = (start: number, count: number): PlainSequence => {
    const tokens = prompt(start + count).slice(start);
    return { tokens, start, blocks: blocksFor(1_000, 0), logits: 'last' };
  };

  test('compute keys of earlier ranges before K and V of the step arrive', () => {
    const counts = () => cluster.workers.map(({ worker }) => worker.counts);
    cluster.rows([sequence(0, 250)]);
    cluster.rows([sequence(250, 6)]);
    // All keys so far are in the range of the step's own rows.
    expect(counts().map(({ earlyCalls }) => earlyCalls)).toEqual([0, 0]);
    cluster.rows([sequence(256, 344)]);
    cluster.rows([sequence(600, 1)]);
    expect(counts().map(({ earlyCalls }) => earlyCalls)).toEqual([2 * oddSpec.layers, 2 * oddSpec.layers]);
    expect(counts().map(({ calls }) => calls)).toEqual([4 * oddSpec.layers, 4 * oddSpec.layers]);
    expect(counts().map(({ rows }) => rows)).toEqual([601 * oddSpec.layers, 601 * oddSpec.layers]);
  });

  test('decode with the same bits over pages that they pulled from the pool of another instance', async () => {
    const expected = [single.rows([sequence(0, 600)]), single.rows([sequence(600, 3)])].flat();
    // Blocks 0 to 31 of both pools have the same pages.
    const pages = 32 * oddSpec.layers;
    const pairs = Int32Array.from({ length: 2 * pages }, (_, i) => i >> 1);
    const pulls = cluster.workers.map(({ worker }, shard) => worker.pull(single.engine.pool, shard, pairs));
    // Steps over other blocks run meanwhile.
    const beside = { ...sequence(0, 300), blocks: blocksFor(320, 40) };
    expect(cluster.rows([beside])).toEqual(single.rows([beside]));
    await expect.poll(() => cluster.workers.every(({ worker }, i) => worker.isPulled(pulls[i]))).toBe(true);
    expect(cluster.workers.map(({ worker }) => worker.counts.pulledPages)).toEqual([pages, pages]);
    expect(cluster.rows([sequence(600, 3)])).toEqual(expected.slice(1));
  });

  test('pull nothing more after a cancel', () => {
    const [{ worker }] = cluster.workers;
    const before = worker.counts.pulledPages;
    // The first page again and again, for seconds.
    const pages = new Int32Array(2 * 600_000);
    const pull = worker.pull(single.engine.pool, 0, pages);
    worker.cancelPull(pull);
    expect(worker.isPulled(pull)).toBe(true);
    const { pulledPages } = worker.counts;
    expect(pulledPages - before).toBeLessThan(600_000);
    cluster.rows([sequence(0, 20)]);
    expect(worker.counts.pulledPages).toBe(pulledPages);
  });

  test('keep the bits when a step was aborted and runs again', () => {
    const expected = [single.rows([sequence(0, 600)]), single.rows([sequence(600, 3)])].flat();
    expect(cluster.run([sequence(0, 600)], Int32Array.of(1))).toEqual({ kind: 'aborted' });
    expect([cluster.rows([sequence(0, 600)]), cluster.rows([sequence(600, 3)])].flat()).toEqual(expected);
  });

  test('keep the bits of two batches that run staggered, over links of their own', () => {
    const batches = [
      [sequence(0, 300), { ...sequence(0, 2), blocks: [70] }],
      [{ ...sequence(0, 400), blocks: blocksFor(400, 40) }],
    ];
    const expected = batches.map((batch) => single.logprobs(single.run(batch)));
    const second = cluster.workers.map((worker) => worker.openLink());
    try {
      const handles = [cluster.handles, Int32Array.from(second, ({ handle }) => handle)];
      const steps = batches.map((batch, i) => ({ ...cluster.stepOf(batch), attentionWorkers: handles[i] }));
      const outcomes = cluster.engine.runStaggered(steps, new Int32Array(1));
      expect(outcomes.map((outcome) => single.logprobs(outcome))).toEqual(expected);
    } finally {
      for (const link of second) link.close();
    }
  });

  test.each([2, 3, 4])('keep the bits of %i batches that rotate over model replicas', (batches) => {
    const path = folder.huggingFace(oddSpec, 'f32');
    const replicas = new Cluster(path, isa, form, { workers: 2, replicas: replicasFor(batches) - 1 });
    const links = Array.from({ length: batches }, () => replicas.workers.map((worker) => worker.openLink()));
    const turns = Int32Array.from(
      rotation(batches, oddSpec.layers + 1).flatMap(({ batch, replica }) => [batch, replica]),
    );
    try {
      for (const [start, count] of [
        [0, 290],
        [290, 1],
        [291, 1],
      ] as const) {
        const sequences = Array.from({ length: batches }, (_, batch) => [
          { ...sequence(start, count), blocks: blocksFor(292, 10 * batch) },
        ]);
        const expected = sequences.map((batch) => single.logprobs(single.run(batch)));
        const steps = sequences.map((batch, i) => ({
          ...replicas.stepOf(batch),
          attentionWorkers: Int32Array.from(links[i], ({ handle }) => handle),
        }));
        const rotates = { others: replicas.replicas, turns };
        const outcomes = replicas.engine.runStaggered(steps, new Int32Array(1), rotates);
        expect(outcomes.map((outcome) => single.logprobs(outcome))).toEqual(expected);
      }
      const step = { ...replicas.stepOf([sequence(0, 1)]), attentionWorkers: replicas.handles };
      const missing = { others: replicas.replicas, turns: turns.slice(2) };
      expect(() => replicas.engine.runStaggered([step], new Int32Array(1), missing)).toThrow(/turn/);
      expect(
        replicas.engine.runStaggered([step], Int32Array.of(1), {
          others: replicas.replicas,
          turns: Int32Array.from({ length: 2 * (oddSpec.layers + 1) }, () => 0),
        }),
      ).toEqual([{ kind: 'aborted' }]);
    } finally {
      for (const link of links.flat()) link.close();
      replicas.close();
    }
  });

  test('by requests: when one ends, only its sequences fail', () => {
    const path = folder.huggingFace(oddSpec, 'f32');
    const parts = new Cluster(path, isa, form, { workers: 2, partition: 'requests' });
    try {
      const at = (worker: number, start: number, count: number): PlainSequence => ({
        ...sequence(start, count),
        blocks: blocksFor(1_000, worker * blocksMost),
      });
      const expected = [single.rows([sequence(0, 300)]), single.rows([sequence(300, 2)])];
      expect([...parts.rows([at(0, 0, 300)]), ...parts.rows([at(1, 0, 300)])].flat()).toEqual([
        ...expected[0],
        ...expected[0],
      ]);
      const counts = parts.workers.map(({ worker }) => worker.counts.rows);
      expect(counts).toEqual([300 * oddSpec.layers, 300 * oddSpec.layers]);
      parts.workers[0]?.end();
      const outcome = parts.run([at(1, 300, 2), at(0, 300, 2)]);
      expect(outcome.kind === 'done' && outcome.result.failedSequences).toEqual(Int32Array.of(1));
      expect(bitRows(parts.engine.readLogits(1), 1)).toEqual(expected[1]);
      parts.workers[0]?.begin();
      expect([...parts.rows([at(0, 0, 300)]), ...parts.rows([at(0, 300, 2)])]).toEqual(expected.flat());
      const stranger = { ...parts.stepOf([at(1, 0, 1)]), attentionWorkers: parts.handles };
      expect(() => parts.engine.run({ ...stranger, sequenceWorkers: Int32Array.of(0) }, new Int32Array(1))).toThrow(
        'Cannot run the step: the attention worker of sequence 0 does not have its blocks',
      );
    } finally {
      parts.close();
    }
  });

  test('answer the next step after one was aborted while its results were on their way', async () => {
    // A result of 700 rows is larger than the ring of shared memory: unread, it would block its worker.
    const wide = { ...oddSpec, heads: 16, kvHeads: 4, headDim: 64, architecture: 'qwen2' as const };
    const path = folder.huggingFace(wide, 'f32');
    const [parts, whole] = [new Cluster(path, isa, form, { workers: 1 }), new Cluster(path, isa, form, { workers: 0 })];
    try {
      const expected = whole.rows([sequence(0, 700)]);
      let aborted = 0;
      for (let delayMs = 1; delayMs < 400 && aborted < 5; delayMs = Math.ceil(delayMs * 1.3)) {
        const abort = new Int32Array(new SharedArrayBuffer(4));
        const timer = new Thread(
          `const { abort, delayMs } = require('node:worker_threads').workerData;
           require('node:worker_threads').parentPort.postMessage('ready');
           Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, delayMs);
           Atomics.store(abort, 0, 1);`,
          { eval: true, workerData: { abort, delayMs } },
        );
        await once(timer, 'message');
        if (parts.run([sequence(0, 700)], abort).kind === 'aborted') aborted++;
        await timer.terminate();
        expect(parts.rows([sequence(0, 700)])).toEqual(expected);
      }
      expect(aborted).toBeGreaterThan(0);
    } finally {
      parts.close();
      whole.close();
    }
  });

  test('when one ends, all sequences of the step fail; over a new one they have the same bits', () => {
    const expected = [single.rows([sequence(0, 600)]), single.rows([sequence(600, 1)])].flat();
    cluster.rows([sequence(0, 600)]);
    cluster.workers[1]?.end();
    const outcome = cluster.run([sequence(600, 1), { ...sequence(0, 2), blocks: [70] }]);
    expect(outcome.kind === 'done' && outcome.result.failedSequences).toEqual(Int32Array.of(0, 1));
    expect(cluster.workers.map(({ link }) => link.isBroken)).toEqual([false, true]);
    cluster.workers[1]?.begin();
    expect([cluster.rows([sequence(0, 600)]), cluster.rows([sequence(600, 1)])].flat()).toEqual(expected);
  });

  test('break the link of a step in which two sequences write the same page', async () => {
    const twice = [
      { ...sequence(0, 3), blocks: [70] },
      { ...sequence(0, 2), blocks: [70] },
    ];
    const outcome = cluster.run(twice);
    expect(outcome.kind === 'done' && outcome.result.failedSequences).toEqual(Int32Array.of(0, 1));
    await expect.poll(() => cluster.workers.map(({ worker }) => worker.counts.broken)).toEqual([1, 1]);
    for (const worker of cluster.workers) {
      worker.end();
      worker.begin();
    }
  });

  test.each(['shared', 'tcp'] as const)(
    'keep a link while a call takes longer than its deadline, over %s',
    (transport) => {
      // Scalar code computes a call of this shape for more than a second.
      const wide = { ...oddSpec, layers: 1, heads: 128, kvHeads: 8, headDim: 128, architecture: 'qwen2' as const };
      const path = folder.huggingFace(wide, 'f32');
      const deadlineMs = 500;
      const parts = new Cluster(
        path,
        'portable',
        { weights: 'f32', inputs: 'f32' },
        { workers: 1, transport, deadlineMs },
      );
      try {
        const rows = [{ ...sequence(0, 350), start: 1_650, blocks: blocksFor(2_000, 0) }];
        expect(parts.rows(rows)).toHaveLength(1);
        const [{ worker }] = parts.workers;
        const { earlySeconds, lateSeconds, heartbeats } = worker.counts;
        expect(1_000 * (earlySeconds + lateSeconds)).toBeGreaterThan(deadlineMs);
        expect(heartbeats).toBeGreaterThan(1);
        // A second link sends keys that exceed the ring, while the threads compute a call of the first.
        const second = parts.workers[0].openLink();
        const handles = [parts.handles, Int32Array.of(second.handle)];
        const other = { ...sequence(0, 500), blocks: blocksFor(512, 64) };
        const steps = [rows, [other]].map((one, i) => ({ ...parts.stepOf(one), attentionWorkers: handles[i] }));
        const outcomes = parts.engine.runStaggered(steps, new Int32Array(1));
        second.close();
        for (const outcome of outcomes)
          expect(outcome.kind === 'done' && outcome.result.failedSequences).toEqual(new Int32Array(0));
      } finally {
        parts.close();
      }
    },
  );
});
