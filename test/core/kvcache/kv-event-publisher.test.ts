// KV events of an instance: a consumer that applies them, with gaps and snapshots, has the blocks of the cache.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createLengthInstance } from '../../../src/core/instance/length-instance.ts';
import { PrefixIndex } from '../../../src/core/kvcache/events/prefix-index.ts';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { InstanceEvent } from '../../../src/core/protocol/events.ts';
import type { KvSnapshot } from '../../../src/core/protocol/kv-events.ts';
import { Float64Pool } from '../../../src/core/scheduler/executor/float64-pool.ts';
import { LengthRequest } from '../../../src/core/scheduler/executor/length-request.ts';
import { World } from '../instance-world.ts';

const blockTokens = 8;
const limits = { tokensMax: 64, logitRowsMax: 9, sequencesMax: 8, stepUsDecoding: 5_000, stepUsPrefill: 5_000 };
const cost = {
  stepUs: () => 100,
  stageUs: () => 100,
  layers: 1,
  rowsWithin: () => 64,
  kvBytesPerToken: 1,
  kvCapacityTokens: 1,
  activationBytesPerToken: 2,
};

interface Arrival {
  readonly family: number;
  readonly input: number;
  readonly output: number;
}

/** An instance with a cache of few blocks, so that new prompts evict old ones, and a consumer of its KV events. Steps take 100 us. */
class Consumer {
  readonly index = new PrefixIndex({ instances: 1, blocks: 4, remembered: 0 });
  readonly batches: number[] = [];
  readonly #instance: ReturnType<typeof createLengthInstance>;
  readonly #pool = new Float64Pool();
  #beforeStepEnds: InstanceEvent<LengthRequest, undefined>[] = [];
  #nowUs = 0;
  #requests = 0;
  snapshots = 0;

  /** @param workers attention workers, each with a cache of its own; undefined: one cache */
  constructor(workers: number | undefined) {
    this.#instance = createLengthInstance({
      ...{ cost, blockTokens, limits, eviction: 'lru', coalesce: true, queueMax: 1_000 },
      blocks: 20 * (workers ?? 1),
      attentionWorkers: workers === undefined ? undefined : { workers, partition: 'requests' },
    });
  }

  /** All of them arrive at once. Every `lossy`th batch is lost; 0: none. */
  submit(arrivals: readonly Arrival[], lossy: number): void {
    const [first, ...others] = arrivals.map((arrival) => this.#request(arrival));
    this.#beforeStepEnds = others;
    this.step(first, lossy);
  }

  #request({ family, input: inputTokens, output: outputTokens }: Arrival): InstanceEvent<LengthRequest, undefined> {
    const index = this.#requests++;
    const full = Math.floor(inputTokens / blockTokens);
    const blocks = Int32Array.from({ length: Math.ceil(inputTokens / blockTokens) }, (_, i) =>
      i < full - 1 ? 1000 * family + i : 100_000 + 100 * index + i,
    );
    const trace = { index, arrivalUs: this.#nowUs, inputTokens, outputTokens, blocks };
    return { kind: 'submit', request: new LengthRequest(trace, blockTokens, this.#pool) };
  }

  step(event: InstanceEvent<LengthRequest, undefined>, lossy: number): KvSnapshot | undefined {
    let snapshot: KvSnapshot | undefined;
    let next: InstanceEffect<undefined, LengthRequest> | undefined;
    for (const effect of this.#instance.step(this.#nowUs, event)) {
      if (effect.kind === 'runStep') next = effect;
      if (effect.kind === 'snapshot') snapshot = effect.snapshot;
      if (effect.kind !== 'kvEvents') continue;
      this.batches.push(effect.batch.number);
      if (lossy > 0 && effect.batch.number % lossy === 0) continue;
      if (this.index.apply(0, effect.batch) === 'gap') this.catchUp();
    }
    this.index.check();
    if (next?.kind === 'runStep') {
      for (const early of this.#beforeStepEnds.splice(0)) this.step(early, lossy);
      this.#nowUs += 100;
      this.step({ kind: 'stepDone', step: next.step, result: undefined, stepUs: [100] }, lossy);
    }
    return snapshot;
  }

  catchUp(): KvSnapshot {
    const snapshot = this.step({ kind: 'requestSnapshot' }, 0);
    if (snapshot === undefined) throw new Error('no snapshot');
    this.index.restore(0, snapshot);
    this.snapshots++;
    return snapshot;
  }
}

test('a consumer that applies all batches, and requests lost ones, has the blocks of the instance', () => {
  const met = { batches: 0, snapshots: 0 };
  const arrival = fc.record({
    family: fc.nat(3),
    input: fc.integer({ min: 1, max: 100 }),
    output: fc.integer({ min: 1, max: 9 }),
  });
  const losses = fc.constantFrom(0, 0, 2, 5);
  const caches = fc.constantFrom(undefined, undefined, 2);
  fc.assert(
    fc.property(fc.array(arrival, { minLength: 10, maxLength: 25 }), losses, caches, (arrivals, lossy, workers) => {
      const consumer = new Consumer(workers);
      for (let i = 0; i < arrivals.length; i += 2) consumer.submit(arrivals.slice(i, i + 2), lossy);
      expect(consumer.batches).toEqual(consumer.batches.map((_, i) => i + 1));
      met.snapshots += consumer.snapshots;
      met.batches += consumer.batches.length;
      // All requests have ended, and KV events precede the report of each end.
      const held = consumer.index.blocksOf(0);
      const { blocks, words, number } = consumer.catchUp();
      expect(number).toBe(consumer.batches.length);
      if (lossy === 0) expect(held).toBe(blocks);
      const chain = { blocks, words };
      for (let i = 0; i < blocks; i++) expect(consumer.index.replicaState(chain, i)).toBe('held');
      expect(consumer.index.blocksOf(0)).toBe(blocks);
    }),
    { numRuns: 60 },
  );
  expect(met.snapshots).toBeGreaterThan(10);
  expect(met.batches).toBeGreaterThan(300);
});

test('an instance without KV events ignores requests for a snapshot', () => {
  const world = new World();
  expect(world.instance.step(0, { kind: 'requestSnapshot' })).toEqual([
    { kind: 'ignored', message: 'Ignored requestSnapshot: this instance publishes no KV events' },
  ]);
});

test('KV events of a prompt that is handed off precede its `prefilled`', () => {
  const handOff = { layerWise: true, receiveTokens: 0, rechecksAdmission: false };
  const instance = createLengthInstance({
    ...{ cost, blockTokens, limits, handOff, blocks: 20, eviction: 'lru', coalesce: true, queueMax: 9 },
  });
  const trace = { index: 0, arrivalUs: 0, inputTokens: 43, outputTokens: 9, blocks: Int32Array.of(1, 2, 3, 4, 5, 6) };
  const request = new LengthRequest(trace, blockTokens, new Float64Pool());
  const effects = [...instance.step(0, { kind: 'submit', request, decodeAt: 1 })];
  const step = effects.find((effect) => effect.kind === 'runStep');
  if (step?.kind !== 'runStep') throw new Error('nothing runs');
  const after = instance.step(100, { kind: 'stepDone', step: step.step, result: undefined, stepUs: [100] });
  expect(after.map(({ kind }) => kind)).toContain('prefilled');
  expect(after.flatMap((effect) => (effect.kind === 'kvEvents' ? [effect.batch.changes] : []))).toEqual([5]);
});
