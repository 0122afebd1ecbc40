// Steps that run as two batches: every request has the tokens and log-probabilities of one batch.
import { describe, expect, test } from 'vitest';
import type { NativeBackend, StaggeredReplicas } from '../../../src/kernel/native/native.ts';
import { overAttentionWorkers } from '../../../src/runtime/attention-workers/staggered-steps.ts';
import { Prng } from '../../../src/util/prng.ts';
import type { Step } from '../../../src/util/step.ts';
import { expectComplete, greedy, promptOf, request, World } from '../../core/instance-world.ts';

const handles = [Int32Array.of(1, 2), Int32Array.of(3, 4)];

/** A world whose engine runs steps over two links for each of two workers. */
function staggeredWorld(links: number, pages: number) {
  const world = new World({ attentionWorkers: { workers: 2 }, pages });
  const whole = world.engine.run.bind(world.engine);
  const used: (readonly number[])[] = [];
  const run = (step: Step) => {
    used.push([...(step.attentionWorkers ?? [])]);
    return { kind: 'done', result: whole(step) } as const;
  };
  const engine = { run, runStaggered: (steps: readonly Step[]) => steps.map(run), layers: [] };
  const workers = { handles: handles.slice(0, links) };
  const runner = overAttentionWorkers(engine, workers, (shape) => world.instance.predictUs(shape));
  world.engine.run = (step) => {
    const outcome = runner.run(step, new Int32Array(1));
    if (outcome.kind !== 'done') throw new Error('the step was aborted');
    return outcome.result;
  };
  return { world, used };
}

describe('steps over attention workers', () => {
  test('with one link for each worker, a step is one batch', () => {
    const { world, used } = staggeredWorld(1, 400);
    world.submit(request('a', promptOf(1, 40)), request('b', promptOf(2, 40)));
    world.finishAll();
    expect(used.every((links) => links.toString() === '1,2')).toBe(true);
  });

  test('with two links, a step of several sequences is two batches, each over links of its own', () => {
    const { world, used } = staggeredWorld(2, 400);
    const [a, b] = [request('a', promptOf(1, 40), { maxTokens: 3 }), request('b', promptOf(2, 40), { maxTokens: 9 })];
    world.submit(a, b);
    world.finishAll();
    for (const one of [a, b]) expectComplete(world, one);
    // The prompt of `a` runs alone, and `b` alone once `a` has ended.
    const both = '1,2;3,4';
    const joined = used.map(String).join(';');
    expect(joined.startsWith(`1,2;${both}`)).toBe(true);
    expect(joined.endsWith('1,2;1,2')).toBe(true);
  });

  test('with several model replicas, the batches rotate over as many as there are batches', () => {
    const rotations: unknown[] = [];
    const engine = {
      run: () => ({ kind: 'aborted' }) as const,
      runStaggered: (steps: readonly Step[], _: Int32Array, rotation?: StaggeredReplicas) => {
        rotations.push({ batches: steps.length, others: rotation?.others, turns: [...(rotation?.turns ?? [])] });
        return steps.map(() => ({ kind: 'aborted' }) as const);
      },
      layers: [{ group: 0, index: 0 }],
    };
    const replica = {} as NativeBackend;
    const links = { handles: [1, 2, 3].map((handle) => Int32Array.of(handle)) };
    const runner = overAttentionWorkers(engine, links, () => 1, [replica]);
    for (const requests of [2, 3]) {
      const world = new World();
      world.submit(...Array.from({ length: requests }, (_, i) => request(`r${i}`, promptOf(i + 1, 40))));
      world.finishStep();
      runner.run(world.running?.plan as Step, new Int32Array(1));
    }
    expect(rotations).toEqual([
      { batches: 2, others: [replica], turns: [0, 0, 1, 1, 0, 0, 1, 1] },
      { batches: 3, others: [replica], turns: [0, 0, 1, 1, 2, 0, 0, 1, 1, 0, 2, 1] },
    ]);
  });

  test('an aborted batch aborts the step', () => {
    const engine = {
      run: () => ({ kind: 'aborted' }) as const,
      runStaggered: (steps: readonly Step[]) => steps.map(() => ({ kind: 'aborted' }) as const),
      layers: [],
    };
    const world = new World();
    world.submit(request('a', promptOf(1, 40)), request('b', promptOf(2, 40)));
    world.finishStep();
    const runner = overAttentionWorkers(engine, { handles }, () => 1);
    const plan = world.running?.plan as Step;
    expect(plan.rowStart).toHaveLength(3);
    expect(runner.run(plan, new Int32Array(1))).toEqual({ kind: 'aborted' });
  });

  test.each([1, 2, 3, 4, 5, 6])(
    'requests with all sampling parameters keep their outputs over preemptions, prefix hits and cancels, seed %i',
    (seed) => {
      const prng = new Prng(seed, 0);
      const { world, used } = staggeredWorld(2, 80);
      const all = Array.from({ length: 14 }, (_, i) => {
        const prompt = promptOf(1 + prng.integer(0, 3), 20 + prng.integer(0, 400));
        const sampling = {
          ...greedy,
          seed: [prng.integer(0, 9), 0] as const,
          repetitionPenalty: prng.chance(0.3) ? 1.1 : 1,
          presencePenalty: prng.chance(0.3) ? 0.5 : 0,
          logitBias: prng.chance(0.3) ? ([[3, 1]] as const) : [],
          topLogprobs: prng.chance(0.5) ? prng.integer(0, 5) : undefined,
          promptLogprobs: prng.chance(0.2),
        };
        return request(`r${i}`, prompt, { maxTokens: 1 + prng.integer(0, 40), sampling });
      });
      const cancelled = new Set<string>();
      for (let turn = 0; turn < 5_000 && (turn < 200 || world.running !== undefined); turn++) {
        if (turn % 10 === 0 && turn / 10 < all.length) world.submit(all[turn / 10]);
        const victim = all[prng.integer(0, all.length - 1)];
        if (prng.chance(0.01) && world.received.has(victim.id) && world.lastOf(victim.id)?.kind !== 'finished') {
          cancelled.add(victim.id);
          world.cancel(victim.id);
        }
        if (world.running === undefined) continue;
        if (prng.chance(0.05)) world.abortStep(prng.integer(0, 10));
        else world.finishStep();
      }
      for (const one of all) if (!cancelled.has(one.id)) expectComplete(world, one);
      expect(used.some(([link]) => link === 3)).toBe(true);
    },
  );
});
