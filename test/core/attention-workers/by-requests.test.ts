// An instance where each sequence lies whole at one attention worker: placement, hits, capacity, and lost workers.
import { describe, expect, test } from 'vitest';
import type { TokenInstanceConfig } from '../../../src/core/instance/token-instance.ts';
import type { InstanceEvent } from '../../../src/core/protocol/events.ts';
import { Prng } from '../../../src/util/prng.ts';
import { expectComplete, expectedOutput, promptOf, request, World } from '../instance-world.ts';

const workers = 2;
const lost = (worker: number): InstanceEvent => ({ kind: 'attentionWorkerLost', worker });
const ready = (worker: number): InstanceEvent => ({ kind: 'attentionWorkerReady', worker });

function worldOf(config: Partial<TokenInstanceConfig> = {}): World {
  return new World({ attentionWorkers: { workers, partition: 'requests' }, ...config });
}

/** The worker of each sequence of the running step, by the first token of its rows. */
function plannedWorkers({ running }: World): number[] {
  return [...(running?.plan.sequenceWorkers ?? [])];
}

function pagesOf(world: World): number {
  return world.instance.snapshot().pages.total / workers;
}

/** A worker ends during a step: its pages are lost, and its sequences are not answered. */
function lose(world: World, worker: number): void {
  const pages = pagesOf(world);
  world.engine.clear(worker * pages, (worker + 1) * pages);
  const running = world.running;
  world.deliver(lost(worker));
  if (running === undefined) return;
  world.running = undefined;
  const failed = new Set(Array.from(running.plan.sequenceWorkers ?? []).flatMap((w, i) => (w === worker ? [i] : [])));
  const result = world.engine.run(running.plan, failed);
  world.engine.clear(worker * pages, (worker + 1) * pages);
  world.deliver({ kind: 'stepDone', step: running.step, result });
}

describe('an instance partitioned by requests over attention workers', () => {
  test('balances sequences by the tokens that workers hold, and the plan names the worker of each', () => {
    const world = worldOf();
    const all = [64, 96, 32, 40].map((length, i) => request(`r${i}`, promptOf(i + 1, length), { maxTokens: 60 }));
    for (const one of all) {
      world.submit(one);
      world.finishStep();
      world.finishStep();
    }
    expect(plannedWorkers(world)).toEqual([0, 1, 0, 1]);
    expect(world.instance.snapshot().attentionWorkers?.map(({ sequences }) => sequences)).toEqual([2, 2]);
    world.finishAll();
    for (const one of all) expectComplete(world, one);
  });

  test('lists blocks and pages of the worker alone', () => {
    const groups = [
      { layers: 2, window: undefined },
      { layers: 3, window: 64 },
    ];
    const world = worldOf({ groups });
    world.submit(...[1, 2, 3].map((kind) => request(`r${kind}`, promptOf(kind, 200))));
    for (let step = 0; step < 6; step++) {
      const { plan } = world.running ?? {};
      for (const [g, group] of plan?.groups.entries() ?? []) {
        const rows = group.pageTable.length / group.layers / workers;
        for (const [i, worker] of (plan?.sequenceWorkers ?? []).entries()) {
          const end = group.blockStart[i + 1] ?? group.blocks.length;
          for (const block of group.blocks.subarray(group.blockStart[i], end)) {
            expect(Math.floor(block / rows)).toBe(worker);
            const pages = group.pageTable.subarray(block * group.layers, (block + 1) * group.layers);
            for (const page of pages) expect(Math.floor(page / pagesOf(world)), `group ${g}`).toBe(worker);
          }
        }
      }
      world.finishStep();
    }
  });

  test('received prompts go to the workers that hold least, and those of a lost worker are computed at another', () => {
    const handOff = { layerWise: true, receiveTokens: 0, receivePages: 60, rechecksAdmission: false };
    const world = worldOf({ handOff });
    const all = [100, 60, 80, 40].map((length, i) => request(`r${i}`, promptOf(i + 1, length), { maxTokens: 6 }));
    for (const one of all)
      world.deliver({ kind: 'peer', from: 9, message: { kind: 'reserve', id: one.id, request: one } });
    expect(world.instance.snapshot().receivePages).toEqual({ total: 120, free: 120 - 2 * (4 + 2 + 3 + 2) });
    world.deliver(lost(0));
    for (const one of all) {
      const [first = 0] = expectedOutput(one).tokens;
      // The pages of both workers are empty here: keys and values that a step reads must have been computed.
      const tokens = { kind: 'tokens', tokens: Int32Array.of(first), logprobs: undefined } as const;
      const firstEvents = [{ kind: 'started', cachedTokens: 0 }, tokens] as const;
      const at0 = one.id === 'r0' || one.id === 'r3';
      if (at0) world.deliver({ kind: 'promptReceived', from: 9, id: one.id, firstEvents });
    }
    expect(new Set(plannedWorkers(world))).toEqual(new Set([1]));
    world.finishAll();
    for (const id of ['r0', 'r3'] as const) {
      const [one] = all.filter((each) => each.id === id);
      if (one !== undefined) expect(world.of(id).tokens).toEqual(expectedOutput(one).tokens);
    }
    world.cancel('r1');
    world.cancel('r2');
    world.deliver(ready(0));
    expect(world.instance.snapshot().receivePages).toEqual({ total: 120, free: 120 });
  });

  test('a sequence goes to the worker with its prefix and reuses it', () => {
    const world = worldOf();
    const [first, other, again] = [
      request('first', promptOf(1, 96)),
      request('other', promptOf(2, 64), { maxTokens: 40 }),
      request('again', promptOf(1, 96)),
    ];
    world.submit(other, first);
    for (let step = 0; step < 8; step++) world.finishStep();
    world.submit(again);
    expect(plannedWorkers(world)).toHaveLength(1);
    world.finishStep();
    expect(plannedWorkers(world)).toEqual([0, 1]);
    world.finishAll();
    for (const one of [first, other, again]) expectComplete(world, one);
    expect(world.of('again').events[1]).toEqual({ kind: 'started', cachedTokens: 64 });
  });

  test('blocks of another worker are no hit: an overloaded worker does not get the sequence', () => {
    const world = worldOf({ pages: 2_000 });
    const long = request('long', promptOf(1, 900), { maxTokens: 40 });
    const same = request('same', promptOf(1, 70), { maxTokens: 4 });
    world.submit(long);
    for (let step = 0; step < 8; step++) world.finishStep();
    world.submit(same);
    world.finishAll();
    for (const one of [long, same]) expectComplete(world, one);
    expect(world.of('same').events[1]).toEqual({ kind: 'started', cachedTokens: 0 });
  });

  test('a request may be as long as the pages of one worker', () => {
    const world = worldOf({ pages: 80 });
    // 40 pages of 2 layers are 20 blocks.
    expect(world.instance.capacityTokens).toBe(20 * 32);
  });

  test('after a loss, only sequences and blocks of that worker are computed again, at the other', () => {
    const world = worldOf();
    const both = [request('a', promptOf(1, 70), { maxTokens: 40 }), request('b', promptOf(2, 70), { maxTokens: 40 })];
    world.submit(...both);
    for (let step = 0; step < 10; step++) world.finishStep();
    const computed = () => world.instance.snapshot().computedPromptTokens;
    const before = computed();
    lose(world, 1);
    expect(plannedWorkers(world)).toEqual([0, 0]);
    expect(world.instance.snapshot()).toMatchObject({
      running: 2,
      attentionWorkers: [
        { ready: true, losses: 0, sequences: 2 },
        { ready: false, losses: 1, sequences: 0, heldTokens: 0 },
      ],
    });
    world.finishAll();
    expect(computed() - before).toBe(70);
    world.deliver(ready(1));
    for (const one of both) expectComplete(world, one);
    const again = request('again', promptOf(1, 70));
    world.submit(again);
    world.finishAll();
    expect(world.of('again').events[1]).toEqual({ kind: 'started', cachedTokens: 64 });
  });

  test('sequences of a worker that stands still are repeated, and the time of that step predicts no other', () => {
    const world = worldOf();
    const all = [1, 2].map((kind) => request(`r${kind}`, promptOf(kind, 64), { maxTokens: 8 }));
    world.submit(...all);
    for (let step = 0; step < 4; step++) world.finishStep();
    const shape = { rows: 2, keyRows: 140, decodeRows: 2, decodeKeys: 140, logitRows: 2 };
    const predictedUs = world.instance.predictUs(shape);
    const { running } = world;
    if (running === undefined) throw new Error('No step is in flight');
    world.running = undefined;
    world.nowUs += 1_000_000;
    const [place] = [plannedWorkers({ running } as World).indexOf(1)];
    world.deliver({ kind: 'stepDone', step: running.step, result: world.engine.run(running.plan, new Set([place])) });
    expect(world.instance.predictUs(shape)).toBe(predictedUs);
    world.finishAll();
    for (const one of all) expectComplete(world, one);
  });

  test('steps wait while all workers are lost', () => {
    const world = worldOf();
    const one = request('a', promptOf(1, 70), { maxTokens: 10 });
    world.submit(one);
    world.finishStep();
    lose(world, 1);
    lose(world, 0);
    expect(world.running).toBeUndefined();
    world.deliver(ready(1));
    expect(plannedWorkers(world)).toEqual([1]);
    world.finishAll();
    expectComplete(world, one);
  });

  test.each(Array.from({ length: 12 }, (_, i) => i + 1))(
    'gives each request its own tokens in a random history of losses and preemptions, seed %i',
    (seed) => {
      const prng = new Prng(seed, 0);
      // Few pages at each worker: sequences are preempted for memory as well.
      const world = worldOf({ pages: 100 });
      const all = Array.from({ length: 14 }, (_, i) => {
        const prompt = promptOf(1 + Math.floor(prng.uniform() * 4), 20 + Math.floor(prng.uniform() * 200));
        const priority = Math.floor(prng.uniform() * 2);
        return request(`r${i}`, prompt, { maxTokens: 1 + Math.floor(prng.uniform() * 60), priority });
      });
      const away = new Set<number>();
      for (let turn = 0; turn < 3_000 && (turn < 300 || world.running !== undefined || away.size > 0); turn++) {
        const dice = prng.uniform();
        if (turn % 12 === 0 && turn / 12 < all.length) world.submit(all[turn / 12]);
        else if (dice < 0.05 && turn < 280) {
          const worker = Math.floor(prng.uniform() * workers);
          if (!away.has(worker)) lose(world, worker);
          away.add(worker);
        } else if (dice < 0.15 || turn > 280) {
          for (const worker of away) world.deliver(ready(worker));
          away.clear();
        }
        if (world.running === undefined) continue;
        if (dice > 0.95) world.abortStep(Math.floor(prng.uniform() * 10));
        else world.finishStep();
      }
      for (const one of all) expectComplete(world, one);
    },
  );
});
