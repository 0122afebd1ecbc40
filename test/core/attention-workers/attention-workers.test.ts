// An instance whose pages lie at attention workers: what a lost one held is computed again, and no token differs.
import { describe, expect, test, vi } from 'vitest';
import { StepCost } from '../../../src/core/cost/step-cost.ts';
import type { InstanceEvent } from '../../../src/core/protocol/events.ts';
import { Prng } from '../../../src/util/prng.ts';
import { expectComplete, promptOf, request, World } from '../instance-world.ts';

const config = { attentionWorkers: { workers: 2 } };
const lost = (worker: number): InstanceEvent => ({ kind: 'attentionWorkerLost', worker });
const ready = (worker: number): InstanceEvent => ({ kind: 'attentionWorkerReady', worker });

/** A worker ends during a step: its pages are lost, and the step ends with no sequence answered. */
function lose(world: World, worker: number): void {
  world.engine.clear();
  const running = world.running;
  world.deliver(lost(worker));
  if (running === undefined) return;
  world.running = undefined;
  const failed = new Set(Array.from({ length: running.plan.rowStart.length - 1 }, (_, i) => i));
  const result = world.engine.run(running.plan, failed);
  world.engine.clear();
  world.deliver({ kind: 'stepDone', step: running.step, result });
}

describe('an instance with attention workers', () => {
  test('computes all sequences again after one is lost, once another has its place', () => {
    const world = new World(config);
    const both = [request('a', promptOf(1, 70), { maxTokens: 40 }), request('b', promptOf(2, 50), { maxTokens: 30 })];
    world.submit(...both);
    for (let step = 0; step < 10; step++) world.finishStep();
    lose(world, 1);
    expect(world.running).toBeUndefined();
    expect(world.instance.snapshot()).toMatchObject({
      waiting: 2,
      pages: { used: 0, cached: 0 },
      attentionWorkers: [
        { ready: true, losses: 0 },
        { ready: false, losses: 1 },
      ],
    });
    world.deliver(ready(1));
    world.finishAll();
    for (const one of both) expectComplete(world, one);
  });

  test('a step that lost a worker teaches the cost model nothing', () => {
    const { observe } = StepCost.prototype;
    const learned = vi.spyOn(StepCost.prototype, 'observe').mockImplementation(observe);
    const calls = () => learned.mock.calls.length;
    const world = new World(config);
    world.submit(request('a', promptOf(1, 40), { maxTokens: 20 }));
    world.finishStep();
    const before = calls();
    expect(before).toBeGreaterThan(0);
    lose(world, 0);
    expect(calls()).toBe(before);
    world.deliver(ready(0));
    world.finishAll();
    expect(calls()).toBeGreaterThan(before);
    learned.mockRestore();
  });

  test('forgets cached prefixes with a lost worker', () => {
    const world = new World(config);
    world.submit(request('a', promptOf(1, 96)));
    world.finishAll();
    lose(world, 0);
    world.deliver(ready(0));
    const again = request('b', promptOf(1, 96));
    world.submit(again);
    world.finishAll();
    expectComplete(world, again);
    expect(world.of('b').events[1]).toEqual({ kind: 'started', cachedTokens: 0 });
  });

  test('holds steps until every worker is ready, and accepts and cancels requests meanwhile', () => {
    const world = new World(config);
    lose(world, 0);
    lose(world, 1);
    const [kept, cancelled] = [request('a', promptOf(1, 40)), request('b', promptOf(2, 40))];
    world.submit(kept, cancelled);
    world.deliver(ready(0));
    expect(world.running).toBeUndefined();
    world.cancel('b');
    expect(world.instance.snapshot()).toMatchObject({ waiting: 1, running: 0 });
    world.deliver(ready(1));
    world.finishAll();
    expectComplete(world, kept);
  });

  test('ignores losses and returns that come twice, late, or of unknown workers', () => {
    const world = new World(config);
    for (const event of [ready(0), lost(2), ready(2), lost(0), lost(0), ready(0), ready(0)]) world.deliver(event);
    expect(world.ignored).toHaveLength(5);
    expect(world.instance.snapshot().attentionWorkers).toEqual([
      { ready: true, losses: 1 },
      { ready: true, losses: 0 },
    ]);
  });

  test('uses fewer pages while one worker holds the shard of another, and fails what no longer fits', () => {
    const world = new World({ ...config, pages: 60 });
    const [short, long] = [
      request('a', promptOf(1, 70), { maxTokens: 40 }),
      request('b', promptOf(2, 100), { maxTokens: 600 }),
    ];
    world.submit(short, long);
    for (let step = 0; step < 5; step++) world.finishStep();
    const { total } = world.instance.snapshot().pages;
    lose(world, 1);
    world.deliver({ kind: 'attentionWorkerReady', worker: 1, pages: Math.floor(total / 2) });
    expect(world.instance.snapshot().pages.total).toBe(Math.floor(total / 2));
    world.finishAll();
    expectComplete(world, short);
    expect(world.of('b').events.at(-1)).toMatchObject({ kind: 'failed' });
    lose(world, 0);
    world.deliver({ kind: 'attentionWorkerReady', worker: 0, pages: total });
    const again = request('c', promptOf(2, 100), { maxTokens: 600 });
    world.submit(again);
    world.finishAll();
    expectComplete(world, again);
  });

  test('without them, their events are ignored', () => {
    const world = new World();
    world.deliver(lost(0));
    world.deliver(ready(0));
    expect(world.ignored).toHaveLength(2);
  });

  test.each([1, 2, 3, 4, 5, 6, 7, 8])(
    'gives each request its own tokens in a random history of losses, seed %i',
    (seed) => {
      const prng = new Prng(seed, 0);
      // Few pages: sequences are preempted for memory as well.
      const world = new World({ ...config, pages: 60 });
      const all = Array.from({ length: 12 }, (_, i) => {
        const prompt = promptOf(1 + Math.floor(prng.uniform() * 4), 20 + Math.floor(prng.uniform() * 200));
        return request(`r${i}`, prompt, { maxTokens: 1 + Math.floor(prng.uniform() * 60) });
      });
      const away = new Set<number>();
      for (let turn = 0; turn < 3_000 && (turn < 300 || world.running !== undefined || away.size > 0); turn++) {
        const dice = prng.uniform();
        if (turn % 20 === 0 && turn / 20 < all.length) world.submit(all[turn / 20]);
        else if (dice < 0.03 && turn < 280) {
          const worker = Math.floor(prng.uniform() * 2);
          if (!away.has(worker)) lose(world, worker);
          away.add(worker);
        } else if (dice < 0.2 || turn > 280) {
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
