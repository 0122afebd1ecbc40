// The rules of requests, each broken on purpose: a run with checks names the broken rule, and the unchanged run passes.
import { afterEach, describe, expect, it } from 'vitest';
import type { LengthEvent } from '../../../src/core/instance/length-instance.ts';
import { BlockCache } from '../../../src/core/kvcache/block-cache.ts';
import { type BlockListener, KvEventLog } from '../../../src/core/kvcache/events/kv-event-log.ts';
import { KvEventPublisher } from '../../../src/core/kvcache/events/kv-event-publisher.ts';
import { PrefixIndex } from '../../../src/core/kvcache/events/prefix-index.ts';
import { BlockMoves, type Move } from '../../../src/core/lending/debtor/block-moves.ts';
import type { ConductorEffect, InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { ConductorEvent } from '../../../src/core/protocol/events.ts';
import type { KvEventBatch } from '../../../src/core/protocol/kv-events.ts';
import { queueFull, type Refusal, refusal } from '../../../src/core/protocol/refusals.ts';
import { AdmissionController, type AdmissionVerdict } from '../../../src/core/router/admission/admission-controller.ts';
import { Conductor } from '../../../src/core/router/conductor.ts';
import type { LengthRequest } from '../../../src/core/scheduler/executor/length-request.ts';
import { Instance } from '../../../src/core/scheduler/instance.ts';
import { RequestTable } from '../../../src/core/scheduler/request-table.ts';
import { EffectRunner } from '../../../src/sim/engine/effect-runner.ts';
import { Simulation, type SimulationConfig } from '../../../src/sim/engine/simulation.ts';
import { requestWorld } from '../../../src/sim/faults/request-worlds.ts';
import type { TraceRequest } from '../../../src/trace/request.ts';
import { cluster, config, handOff, requestOf } from '../small-cluster.ts';

interface World {
  readonly trace: readonly TraceRequest[];
  readonly changes: Partial<SimulationConfig>;
  /** By request that arrives: the request that is then cancelled. */
  readonly cancels?: Readonly<Record<number, string>>;
}

/** Prompts of a few families, and more blocks than fit. */
const trace = Array.from({ length: 60 }, (_, i) => requestOf(i, i * 8_000, 90 + (i % 40), 6, i % 7));
const coupled: World = { trace, changes: {} };
const alone: World = { trace, changes: { instances: cluster({ mixed: 1 }) } };
const disaggregated: World = { trace, changes: { instances: cluster({ prefill: 1, decode: 1 }) } };
const slowLink: World = {
  trace,
  changes: { ...disaggregated.changes, linkBytesPerSecond: 2e6 },
  cancels: { 12: '3' },
};
const slo = { ttft: { us: 400_000 }, tbt: { us: 30_000 } };
const withSlo: World = { trace, changes: { admission: { kind: 'early', slo, decodeUs: 1e6 } } };
const rechecked: World = {
  trace,
  changes: {
    instances: cluster({ prefill: 1, decode: 1 }, { handOff: { ...handOff, rechecksAdmission: true } }),
    admission: { kind: 'stage', slo: { ...slo, ttft: { us: 9e6 } }, decodeUs: 1e6 },
  },
};

/** A chaos world in which creditors recall many blocks over a slow network, while requests are cancelled. */
function recalling(seed: number): World {
  const { config: made, trace } = requestWorld(seed);
  const instances = made.instances.map(({ machine, ...spec }) => {
    const { borrowing } = machine;
    const policy = borrowing && { ...borrowing.policy, recallBlocks: 6 };
    return { ...spec, machine: { ...machine, borrowing: policy && { ...borrowing, policy } } };
  });
  const cancels = Object.fromEntries(trace.flatMap(({ index }) => (index % 5 === 4 ? [[index, `${index - 3}`]] : [])));
  return { trace, changes: { ...made, instances, linkBytesPerSecond: 1e6 }, cancels };
}
const recalled = recalling(12);
const recalledWithoutFaults: World = { ...recalled, changes: { ...recalled.changes, faults: undefined } };

function simulate({ trace, changes, cancels = {} }: World): Simulation {
  const simulation = new Simulation({ ...config, ...changes });
  for (const request of trace) {
    simulation.arrive(request);
    const cancelled = cancels[request.index];
    if (cancelled !== undefined) simulation.cancel(cancelled);
  }
  simulation.finish();
  return simulation;
}

const restore: (() => void)[] = [];
afterEach(() => {
  for (const undo of restore.splice(0)) undo();
});

/** Calls of a machine's method go through `instead`, which receives the original method. */
function tamper<Args extends unknown[], Result>(
  { prototype }: { readonly prototype: object },
  method: string,
  instead: (original: (...args: Args) => Result, ...args: Args) => Result,
): void {
  const original = Reflect.get(prototype, method) as (...args: Args) => Result;
  expect(original).toBeTypeOf('function');
  const tampered = function (this: unknown, ...args: Args): Result {
    return instead((...given) => original.apply(this, given), ...args);
  };
  Reflect.set(prototype, method, tampered);
  restore.push(() => Reflect.set(prototype, method, original));
}

type Effects = readonly InstanceEffect<undefined, LengthRequest>[];
type Event = LengthEvent;

/** Instances lose some of their events. */
function loseEvents(isLost: (event: Event) => boolean): void {
  tamper<[number, Event], Effects>(Instance, 'step', (step, nowUs, event) => (isLost(event) ? [] : step(nowUs, event)));
}

type ConductorEffects = readonly ConductorEffect<LengthRequest>[];
type ConductorInput = ConductorEvent<LengthRequest>;

function tamperWithConductor(
  instead: (step: (event: ConductorInput) => ConductorEffects, event: ConductorInput) => ConductorEffects,
): void {
  tamper<[number, ConductorInput], ConductorEffects>(Conductor, 'step', (step, nowUs, event) =>
    instead((given) => step(nowUs, given), event),
  );
}

function isEnd(effect: ConductorEffect<LengthRequest>, id: string): boolean {
  return effect.kind === 'emit' && effect.id === id && effect.event.kind === 'finished';
}

/** Refuses every request for this cause. */
function refuseAll(cause: (verdict: AdmissionVerdict) => Parameters<typeof refusal>[0]): void {
  tamper<never[], AdmissionVerdict>(AdmissionController, 'judge', (judge, ...question) => {
    const verdict = judge(...question);
    return { ...verdict, refusal: refusal(cause(verdict), 1000) };
  });
}

const cases: readonly (readonly [title: string, world: World, tamper: () => void, error: RegExp])[] = [
  [
    'a request that an instance loses',
    coupled,
    () => loseEvents((event) => event.kind === 'submit' && event.request.id === '7'),
    /1 requests have not ended/,
  ],
  [
    'a request without its last event',
    coupled,
    () => tamperWithConductor((step, event) => step(event).filter((effect) => !isEnd(effect, '7'))),
    /clients wait, the conductor has \d+ requests/,
  ],
  [
    'a request that is answered twice',
    coupled,
    () =>
      tamperWithConductor((step, event) => step(event).flatMap((each) => (isEnd(each, '7') ? [each, each] : [each]))),
    /request 7 ended twice/,
  ],
  [
    'a request that ends before its last token',
    coupled,
    () =>
      tamperWithConductor((step, event) =>
        event.kind === 'generationEvent' && event.id === '7' && event.event.kind === 'tokens'
          ? step({ ...event, event: { kind: 'finished', reason: 'stop' } })
          : step(event),
      ),
    /request 7 ended with 1 of 6 tokens/,
  ],
  [
    'a cancel that an instance loses',
    slowLink,
    () => loseEvents((event) => event.kind === 'cancel'),
    /holds request 3, which is cancelled/,
  ],
  [
    'a stream of a cancelled request that continues',
    slowLink,
    () =>
      tamper<[number, Effects[number]], void>(EffectRunner, 'perform', (perform, index, effect) => {
        if (effect.kind !== 'stopStream') perform(index, effect);
      }),
    /holds request 3, which is cancelled/,
  ],
  [
    'leaked memory of a sent prompt',
    disaggregated,
    () =>
      loseEvents((event) => event.kind === 'peer' && event.message.kind === 'received' && event.message.id === '59'),
    /instance 0 leaks/,
  ],
  [
    'an index that keeps removed blocks',
    coupled,
    () =>
      tamper<[number, KvEventBatch], unknown>(PrefixIndex, 'apply', (apply, instance, batch) =>
        apply(instance, { ...batch, stored: batch.stored.map(() => 1) }),
      ),
    /the index names block .* though the instance has published its removal/,
  ],
  [
    'an instance that does not publish removed blocks',
    alone,
    () => tamper<[boolean], unknown>(KvEventPublisher, 'changes', () => undefined),
    /has removed 64 blocks and published none/,
  ],
  [
    'an event log that records removed blocks as stored',
    coupled,
    () =>
      tamper<[Uint32Array, number, boolean, number], void>(KvEventLog, 'record', (record, words, at, _, depth) =>
        record(words, at, true, depth),
      ),
    /the index names block .* though the instance has published its removal/,
  ],
  [
    'a cache that removes blocks without events',
    coupled,
    () =>
      tamper<[BlockListener], void>(BlockCache, 'setListener', (setListener, listener) =>
        setListener({ record: (words, at, stored, depth) => stored && listener.record(words, at, stored, depth) }),
      ),
    /which it does not have and has not just removed/,
  ],
  [
    'lent blocks that are returned while they are copied home',
    recalledWithoutFaults,
    () =>
      tamper<[Move], void>(BlockMoves, 'end', (end, move) => {
        if (move.kind === 'relocate') move.pending = 0;
        end(move);
      }),
    /block \d+ that instance 2 lent to 0 is under way as lent 0 \d+, and is returned or reused/,
  ],
  [
    'a refusal for a TTFT within its SLO',
    withSlo,
    () =>
      refuseAll(({ predicted }) => ({
        reason: 'ttft',
        at: 'prefill',
        predictedUs: predicted?.ttftUs ?? 0,
        mostUs: 4e5,
      })),
    /was refused for its ttft at a load of 0\.\d+/,
  ],
  [
    'a refusal for a TTFT limit below the SLO',
    withSlo,
    () => refuseAll(() => ({ reason: 'ttft', at: 'prefill', predictedUs: 300_000, mostUs: 200_000 })),
    /was refused for its ttft over 200000 us: its limit is 400000 us/,
  ],
  [
    'a refusal for memory that is free',
    withSlo,
    () => refuseAll(() => ({ reason: 'memory', at: 'prefill', share: 0.9 })),
    /was refused for its memory at a load of 0.9/,
  ],
  [
    'a refusal for a queue that is not full',
    coupled,
    () => tamper<[number, number], Refusal>(Conductor, 'overload', () => queueFull(12, 1000, 1000)),
    /was refused for its queue at a load of 0.013/,
  ],
  [
    'a refusal at decode for a TBT limit that no request has',
    rechecked,
    () => tamper<[number], number>(RequestTable, 'tbtUsMax', () => 10),
    /was refused for its tbt over 10 us: its limit is 30000 us/,
  ],
];

describe('a run with checks', () => {
  it.each([
    ['coupled', coupled],
    ['disaggregated', disaggregated],
    ['slow link', slowLink],
    ['withSlo', withSlo],
    ['rechecked', rechecked],
  ])('ends without a breach: %s', (_, world) => {
    const { outcome, checks } = simulate(world);
    expect(outcome.completedRequests).toBeGreaterThan(40);
    expect(checks?.events).toBeGreaterThan(200);
  });

  it('ends without a breach where lent blocks are recalled, and where creditors restart', () => {
    for (const world of [recalledWithoutFaults, recalling(7)]) {
      const { outcome, lending } = simulate(world);
      expect(outcome.completedRequests).toBeGreaterThan(20);
      expect(lending?.counts.recalls).toBeGreaterThan(0);
    }
  });

  it.each(cases)('finds %s', (_, world, tamper, error) => {
    tamper();
    expect(() => simulate(world)).toThrow(error);
  });

  it('finds nothing without checks', () => {
    loseEvents((event) => event.kind === 'submit' && event.request.id === '7');
    expect(simulate({ ...coupled, changes: { checking: false } }).unfinished).toBe(1);
  });
});
