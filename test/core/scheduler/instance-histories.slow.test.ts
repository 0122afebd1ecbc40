// Random histories of an instance: every request that is not cancelled ends with exactly the output that it gets alone.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type EvictionKind, evictionKinds } from '../../../src/core/kvcache/eviction.ts';
import { blockPages, pagesFor } from '../../../src/core/kvcache/layer-groups.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { type LayerGroup, pageTokens } from '../../../src/util/step.ts';
import { expectComplete, greedy, limits, promptOf, request, World } from '../instance-world.ts';

/** One group, windows beside it in both orders, windows alone: smaller and larger than a block, whole blocks or not. */
const layerGroups: readonly (readonly LayerGroup[])[] = [
  [{ layers: 3, window: undefined }],
  [
    { layers: 2, window: 40 },
    { layers: 1, window: undefined },
  ],
  [
    { layers: 2, window: undefined },
    { layers: 1, window: 64 },
    { layers: 1, window: 5 },
  ],
  [{ layers: 2, window: 33 }],
  [
    { layers: 1, window: 20 },
    { layers: 2, window: 70 },
  ],
];

/** Few different prompts, many lengths: shared prefixes, equal prompts and near misses are common. */
const arbitraryRequest = fc.record({
  kind: fc.constantFrom(1, 1, 1, 2, 3),
  length: fc.integer({ min: 1, max: 150 }),
  tail: fc.integer({ min: 0, max: 3 }),
  maxTokens: fc.constantFrom(0, 1, 3, 20, 70, 70, 70),
  priority: fc.constantFrom(0, 0, 0, 1, -2),
  batch: fc.constantFrom(false, false, true),
  seed: fc.constantFrom(1, 1, 9),
  stop: fc.boolean(),
  penalised: fc.constantFrom(false, false, true),
  scored: fc.constantFrom(false, false, false, true),
  width: fc.constantFrom(undefined, undefined, 0, 4),
  salt: fc.constantFrom('', '', 'other'),
});

type Drawn = typeof arbitraryRequest extends fc.Arbitrary<infer T> ? T : never;

const arbitraryAction = fc.oneof(
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('submit' as const), drawn: arbitraryRequest }) },
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('finish' as const), steps: fc.integer({ min: 1, max: 12 }) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('abort' as const), rows: fc.nat(60) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('cancel' as const), which: fc.nat(30) }) },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('pin' as const), drawn: arbitraryRequest, ttlUs: fc.nat(200_000) }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('unpin' as const), which: fc.nat(10) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('wake' as const) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('noise' as const), step: fc.nat(20) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('fail' as const), one: fc.nat(3) }) },
);

function toRequest(id: string, drawn: Drawn): GenerationRequest {
  return request(id, [...promptOf(drawn.kind, drawn.length), ...promptOf(40, drawn.tail)], {
    maxTokens: drawn.maxTokens,
    priority: drawn.priority,
    batch: drawn.batch,
    salt: drawn.salt,
    stopTokenIds: drawn.stop ? [3, 14, 15] : [],
    sampling: {
      ...greedy,
      seed: [drawn.seed, 0],
      repetitionPenalty: drawn.penalised ? 1.2 : 1,
      logitBias: drawn.penalised ? [[drawn.seed, 1]] : [],
      topLogprobs: drawn.width,
      promptLogprobs: drawn.scored,
    },
  });
}

interface Settings {
  readonly groups: readonly LayerGroup[];
  /** Blocks beyond those of the largest request. */
  readonly spareBlocks: number;
  readonly tokensMax: number;
  readonly sequencesMax: number;
  readonly eviction: EvictionKind;
  readonly queueMax: number;
  readonly usPerStep: number;
  /** Share of the memory that batch jobs may hold together. */
  readonly jobShare: number;
  /** Blocks that pins may hold, beyond those of the largest request. */
  readonly pinBlocks: number;
  /** Of host memory below the pool; 0: there is none. */
  readonly hostBlocks: number;
}

const arbitrarySettings: fc.Arbitrary<Settings> = fc.record({
  groups: fc.constantFrom(...layerGroups),
  spareBlocks: fc.constantFrom(0, 1, 5, 23),
  tokensMax: fc.constantFrom(36, 50, 200),
  sequencesMax: fc.constantFrom(1, 3, 4),
  eviction: fc.constantFrom(...evictionKinds),
  queueMax: fc.constantFrom(6, 100),
  usPerStep: fc.constantFrom(3_000, 50_000),
  jobShare: fc.constantFrom(0.1, 0.5),
  pinBlocks: fc.constantFrom(0, 2, 9),
  hostBlocks: fc.constantFrom(0, 3, 12, 60),
});

class History {
  readonly world: World;
  readonly requests: GenerationRequest[] = [];
  readonly cancelled = new Map<string, number>();
  pins = 0;

  constructor(settings: Settings) {
    const { groups, spareBlocks, pinBlocks, hostBlocks, tokensMax, sequencesMax, usPerStep: us } = settings;
    const pages = pagesFor(groups, 153 + 70, pageTokens) + (spareBlocks + pinBlocks) * blockPages(groups) + 1;
    this.world = new World({
      // The largest request fits alone, a block at a time; one page more belongs to no block.
      pages,
      pinShare: (pinBlocks * blockPages(groups)) / pages,
      groups,
      ...(hostBlocks > 0 && { tiers: { hostBlocks, ssdBlocks: 0 }, contents: { onSsd: undefined } }),
      eviction: settings.eviction,
      queueMax: settings.queueMax,
      limits: {
        ...limits,
        tokensMax,
        sequencesMax,
        logitRowsMax: sequencesMax + 5,
        stepUsDecoding: us,
        stepUsPrefill: us,
        background: { memoryShare: settings.jobShare, stepUs: us, timeShare: 0.01 },
      },
    });
  }

  act(action: typeof arbitraryAction extends fc.Arbitrary<infer T> ? T : never): void {
    const { world } = this;
    if (action.kind === 'submit') {
      const one = toRequest(`r${this.requests.length}`, action.drawn);
      this.requests.push(one);
      world.submit(one);
    } else if (action.kind === 'cancel') {
      const id = `r${action.which}`;
      // A request that is submitted after its cancel is ignored.
      if (!world.received.has(id)) return;
      world.cancel(id);
      if (!this.cancelled.has(id)) this.cancelled.set(id, world.of(id).events.length);
    } else if (action.kind === 'pin') {
      const one = toRequest(`pin-${this.pins}`, { ...action.drawn, maxTokens: 0, scored: false, batch: false });
      world.deliver({ kind: 'pin', id: `p${this.pins++}`, request: one, ttlUs: action.ttlUs });
    } else if (action.kind === 'unpin') {
      world.deliver({ kind: 'unpin', id: `p${action.which}` });
    } else if (action.kind === 'wake') {
      world.deliver({ kind: 'wake' });
    } else if (action.kind === 'noise') {
      const real = world.running?.step === action.step;
      if (!real) world.deliver({ kind: 'stepAborted', step: action.step });
    } else if (world.running !== undefined) {
      if (action.kind === 'abort') world.abortStep(action.rows);
      else if (action.kind === 'fail') world.failStep('broken');
      else for (let i = 0; i < action.steps && world.running !== undefined; i++) world.finishStep();
    }
  }

  /** Every request ends as expected, and no page is held. */
  end(): void {
    const { world } = this;
    world.finishAll(3_000);
    world.nowUs += 1_000_000;
    world.deliver({ kind: 'wake' });
    const open = new Set(world.pins.flatMap(([id, { kind }]) => (kind === 'pinned' ? [id] : [])));
    for (const [id, { kind }] of world.pins) if (kind === 'unpinned') open.delete(id);
    expect([...open]).toEqual([]);
    for (const one of this.requests) {
      const { events } = world.of(one.id);
      const last = events.at(-1);
      const eventsAtCancel = this.cancelled.get(one.id);
      if (eventsAtCancel !== undefined) expect(events).toHaveLength(eventsAtCancel);
      else if (last?.kind !== 'failed') expectComplete(world, one);
      else expect(last.code === 'ENGINE_FAILED' || (last.code === 'KV_OVERLOADED' && events.length === 1)).toBe(true);
    }
    const { waiting, running, pages } = world.instance.snapshot();
    expect([waiting, running, pages.used, pages.free + pages.cached]).toEqual([0, 0, 0, pages.total]);
  }
}

test('every request ends with exactly the tokens that it gets alone, and nothing leaks', () => {
  let preempted = 0;
  let shared = 0;
  let evicted = 0;
  let pinned = 0;
  let fromHost = 0;
  fc.assert(
    fc.property(arbitrarySettings, fc.array(arbitraryAction, { minLength: 5, maxLength: 80 }), (settings, actions) => {
      const history = new History(settings);
      for (const action of actions) history.act(action);
      history.end();
      const snapshot = history.world.instance.snapshot();
      preempted += snapshot.preemptions;
      shared += snapshot.cachedTokens;
      evicted += snapshot.evictedBlocks;
      pinned += history.world.instance.components.pinning.hitTokens;
      fromHost += snapshot.tiers?.reads.host ?? 0;
    }),
    { numRuns: 120 },
  );
  // The histories cover preemption, sharing, eviction, pins and host memory.
  expect(Math.min(preempted, shared, evicted, pinned, fromHost)).toBeGreaterThan(0);
});

test('within a priority no request starves while others keep arriving', () => {
  const world = new World({ pages: 60, limits: { ...limits, tokensMax: 64, sequencesMax: 4 } });
  const long = request('long', promptOf(1, 700), { maxTokens: 100 });
  let next = 0;
  const another = (): void => {
    world.submit(request(`s${next}`, promptOf(2 + next, 25), { maxTokens: 8 }));
    next++;
  };
  for (let i = 0; i < 6; i++) another();
  world.submit(long);
  let steps = 0;
  for (; world.lastOf('long')?.kind !== 'finished'; steps++) {
    world.finishStep();
    while (world.instance.snapshot().waiting < 6) another();
    expect(steps).toBeLessThan(400);
  }
  expectComplete(world, long);
  expect(next).toBeGreaterThan(30);
});
