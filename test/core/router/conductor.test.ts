// The conductor: accepts or refuses at once, tracks requests to their ends, forwards cancels, and drains.

import fc from 'fast-check';
import { expect, test } from 'vitest';
import { KvEventLog } from '../../../src/core/kvcache/events/kv-event-log.ts';
import type { ConductorEffect } from '../../../src/core/protocol/effects.ts';
import type { ConductorEvent } from '../../../src/core/protocol/events.ts';
import type { GenerationEvent } from '../../../src/core/protocol/ports.ts';
import { Conductor } from '../../../src/core/router/conductor.ts';
import { tokenRequests } from '../../../src/core/router/token-requests.ts';
import { Throughput } from '../../../src/core/scheduler/throughput.ts';
import { promptOf, request, World } from '../instance-world.ts';

const accepted: GenerationEvent = { kind: 'accepted' };
const started: GenerationEvent = { kind: 'started', cachedTokens: 0 };
const finished: GenerationEvent = { kind: 'finished', reason: 'length' };
const tokens: GenerationEvent = { kind: 'tokens', tokens: Int32Array.of(1), logprobs: undefined };

function conductor(queueMax = 3, instances = 1): (event: ConductorEvent, nowUs?: number) => readonly ConductorEffect[] {
  const machine = new Conductor({
    requests: tokenRequests,
    queueMax,
    instances: Array.from({ length: instances }, () => ({ capacityTokens: 100 })),
  });
  return (event, nowUs = 0) => {
    const effects = machine.step(nowUs, event);
    machine.check();
    return effects;
  };
}

function submit(id: string): ConductorEvent {
  return { kind: 'submit', request: request(id, [1, 2, 3]) };
}

function reported(id: string, event: GenerationEvent, instance = 0): ConductorEvent {
  return { kind: 'generationEvent', instance, id, event };
}

test('accepts a request at once, forwards it and follows it to its end; drops the accepted event of the instance', () => {
  const step = conductor();
  const one = request('a', [1, 2, 3]);
  expect(step({ kind: 'submit', request: one })).toEqual([
    { kind: 'emit', id: 'a', event: accepted },
    { kind: 'forward', id: 'a', instance: 0, request: one, decodeAt: undefined, predicted: undefined, cachedTokens: 0 },
  ]);
  expect(step(reported('a', accepted))).toEqual([]);
  for (const event of [started, tokens, finished])
    expect(step(reported('a', event))).toEqual([{ kind: 'emit', id: 'a', event }]);
  expect(step(reported('a', finished))).toEqual([]);
});

test('forwards a start that tokens have overtaken, once', () => {
  const step = conductor();
  step(submit('a'));
  for (const event of [tokens, started]) expect(step(reported('a', event))).toEqual([{ kind: 'emit', id: 'a', event }]);
  expect(step(reported('a', started))).toEqual([]);
});

test('refuses at once at the limit of accepted requests, with a Retry-After by the throughput', () => {
  const step = conductor(3);
  for (let i = 0; i < 40; i++) {
    step(submit(`x${i}`), i * 4_000_000);
    step(reported(`x${i}`, finished), i * 4_000_000);
  }
  for (const id of ['a', 'b', 'c']) step(submit(id), 160_000_000);
  expect(step(submit('d'), 160_000_000)).toEqual([
    {
      kind: 'emit',
      id: 'd',
      event: {
        kind: 'failed',
        code: 'KV_OVERLOADED',
        message: 'Cannot admit request: 3 of at most 3 requests are being served, try again in 6000 ms',
        retryAfterMs: 6000,
        cause: { at: 'prefill', reason: 'queue', accepted: 3, queueMax: 3 },
      },
    },
  ]);
  step({ kind: 'cancel', id: 'b' });
  expect(step(submit('d'))[0]).toMatchObject({ event: accepted });
});

test('batch jobs take no places of the queue', () => {
  const machine = new Conductor({
    requests: tokenRequests,
    queueMax: 2,
    instances: [{ capacityTokens: 1000 }],
    batchJobs: { memoryShare: 0.5 },
  });
  const submitted = (id: string, batch: boolean) => {
    const [first] = machine.step(0, { kind: 'submit', request: request(id, [1, 2, 3], { batch }) });
    machine.check();
    return first;
  };
  for (let i = 0; i < 9; i++) expect(submitted(`job${i}`, true)).toMatchObject({ event: accepted });
  for (const id of ['a', 'b']) expect(submitted(id, false)).toMatchObject({ event: accepted });
  expect(submitted('c', false)).toMatchObject({ event: { cause: { reason: 'queue', accepted: 2, queueMax: 2 } } });
  expect(submitted('job9', true)).toMatchObject({ event: accepted });
  machine.step(0, reported('job0', finished));
  machine.step(0, { kind: 'cancel', id: 'job1' });
  machine.check();
});

test('Retry-After stays between a second and a minute, also before any request has ended', () => {
  const throughput = new Throughput();
  expect(throughput.retryAfterMs(5, 100)).toBe(1_000);
  for (let i = 0; i < 200; i++) throughput.ended(i * 1_000_000);
  expect(throughput.retryAfterMs(200_000_000, 20)).toBe(10_000);
  expect(throughput.retryAfterMs(200_000_000, 1)).toBe(1_000);
  expect(throughput.retryAfterMs(900_000_000, 500)).toBe(60_000);
});

test('routes to instances whose memory holds the request', () => {
  const capacities = [10, 100, 40];
  const instances = capacities.map((capacityTokens) => ({ capacityTokens }));
  const machine = new Conductor({ requests: tokenRequests, queueMax: 100, instances });
  const instancesOf = (id: string, promptTokens: number) => {
    const sent = request(id, promptOf(1, promptTokens), { maxTokens: 2 });
    const effects = machine.step(0, { kind: 'submit', request: sent });
    return effects.flatMap((effect) => (effect.kind === 'forward' ? [effect.instance] : []));
  };
  for (let i = 0; i < 4; i++) expect(instancesOf(`long ${i}`, 90)).toEqual([1]);
  const middle = Array.from({ length: 4 }, (_, i) => instancesOf(`middle ${i}`, 30));
  expect(middle).toEqual([[2], [2], [2], [2]]);
  expect(instancesOf('short', 5)).toEqual([0]);
  expect(instancesOf('too long', 100)).toEqual([]);
  machine.step(0, { kind: 'instanceFailed', instance: 1 });
  expect(instancesOf('without instance', 90)).toEqual([]);
  machine.check();
});

test('refuses a request that cannot fit, with both lengths', () => {
  const [effect] = conductor()({ kind: 'submit', request: request('a', promptOf(1, 90), { maxTokens: 12 }) });
  expect(effect).toMatchObject({ event: { code: 'CONTEXT_TOO_LONG' } });
  expect(effect).toMatchObject({
    event: { message: expect.stringContaining('90 prompt tokens and up to 12 of output, 100 fit') },
  });
});

test('a cancel interrupts the prefill of the request, and no decode step that others share', () => {
  const step = conductor(10);
  for (const id of ['a', 'b', 'c', 'd']) step(submit(id));
  const cancel = (id: string): unknown => step({ kind: 'cancel', id })[0];
  step(reported('a', started));
  expect(cancel('a')).toEqual({ kind: 'cancel', instance: 0, id: 'a', interrupt: true });
  expect(step(reported('a', tokens))).toEqual([]);
  // No output since the last interrupt: another one would starve the other requests.
  step(reported('b', started));
  expect(cancel('b')).toMatchObject({ interrupt: false });
  step(reported('c', tokens));
  expect(cancel('c')).toMatchObject({ interrupt: false });
  step(reported('d', started));
  expect(cancel('d')).toMatchObject({ interrupt: true });
  expect(cancel('d')).toEqual({ kind: 'ignored', message: 'Ignored cancel: request d is not live' });
});

test('a cancel interrupts the prefill of the only request every time', () => {
  const step = conductor(10);
  for (const id of ['a', 'b', 'c']) {
    step(submit(id));
    step(reported(id, started));
    expect(step({ kind: 'cancel', id })[0]).toMatchObject({ interrupt: true });
  }
});

test('drain refuses new requests, lets the others end, then reports it', () => {
  const step = conductor();
  step(submit('a'));
  expect(step({ kind: 'drain' })).toEqual([]);
  expect(step(submit('b'))).toEqual([
    {
      kind: 'emit',
      id: 'b',
      event: {
        kind: 'failed',
        code: 'SHUTTING_DOWN',
        message: 'Cannot admit request: the server is shutting down',
        retryAfterMs: undefined,
      },
    },
  ]);
  expect(step(reported('a', finished)).at(-1)).toEqual({ kind: 'drained' });
  expect(conductor()({ kind: 'drain' })).toEqual([{ kind: 'drained' }]);
});

test('the requests of a failed instance fail once, and it receives no new ones', () => {
  const step = conductor(10, 2);
  for (const id of ['a', 'b', 'c']) step(submit(id));
  const effects = step({ kind: 'instanceFailed', instance: 0 });
  expect(effects.map((effect) => (effect.kind === 'emit' ? effect.id : effect.kind))).toEqual(['a', 'c']);
  expect(effects[0]).toMatchObject({ event: { code: 'ENGINE_FAILED' } });
  expect(step({ kind: 'instanceFailed', instance: 0 })[0]?.kind).toBe('ignored');
  expect(step(submit('d'))[1]).toMatchObject({ kind: 'forward', instance: 1 });
  step({ kind: 'instanceFailed', instance: 1 });
  expect(step(submit('e'))).toHaveLength(1);
});

test('with a real instance, no history loses a request or ends one twice', () => {
  const action = fc.oneof(
    { weight: 3, arbitrary: fc.constant('submit' as const) },
    { weight: 3, arbitrary: fc.constant('step' as const) },
    { weight: 1, arbitrary: fc.nat(20) },
  );
  fc.assert(
    fc.property(fc.array(action, { maxLength: 60 }), (actions) => {
      const world = new World({ queueMax: 6, pages: 40 });
      const machine = new Conductor({
        requests: tokenRequests,
        queueMax: 6,
        instances: [{ capacityTokens: world.instance.capacityTokens }],
      });
      const ends = new Map<string, number>();
      const seen = new Map<string, number>();
      let submitted = 0;
      const step = (event: ConductorEvent): void => {
        for (const effect of machine.step(world.nowUs, event)) {
          if (effect.kind === 'forward') world.submit(effect.request);
          if (effect.kind === 'cancel') world.cancel(effect.id);
          const last = effect.kind === 'emit' && (effect.event.kind === 'finished' || effect.event.kind === 'failed');
          if (effect.kind === 'emit' && last) ends.set(effect.id, (ends.get(effect.id) ?? 0) + 1);
        }
        machine.check();
      };
      const pass = (): void => {
        for (const [id, { events }] of world.received) {
          for (let at = seen.get(id) ?? 0; at < events.length; at++) step(reported(id, events[at] as GenerationEvent));
          seen.set(id, events.length);
        }
      };
      for (const what of actions) {
        if (what === 'submit')
          step({ kind: 'submit', request: request(`r${submitted++}`, promptOf(submitted % 3, 50)) });
        else if (what === 'step' && world.running !== undefined) world.finishStep();
        else if (typeof what === 'number' && what < submitted && !ends.has(`r${what}`)) {
          step({ kind: 'cancel', id: `r${what}` });
          ends.set(`r${what}`, 1);
        }
        // Events of the instance arrive late.
        if (what !== 'submit') pass();
      }
      world.finishAll();
      pass();
      expect(machine.accepted).toBe(0);
      expect([...ends.values()]).toEqual(Array.from({ length: submitted }, () => 1));
    }),
  );
});

test('places by the KV events of instances, and requests a snapshot when events are lost', () => {
  const log = new KvEventLog(0);
  const words = Uint32Array.of(1, 2, 3, 4, 5, 6, 7, 8);
  const machine = new Conductor({
    requests: tokenRequests,
    queueMax: 9,
    instances: Array.from({ length: 3 }, () => ({ capacityTokens: 100 })),
    placement: {
      kind: 'cache-aware',
      seed: [0, 0],
      balancingThreshold: 2,
      blockTokens: 4,
      prompts: {
        chainOf: () => ({ blocks: 2, words }),
        priorityOf: () => 0,
        tenantOf: () => '',
        mayPipeline: () => true,
      },
      transfers: undefined,
      predictors: Array.from({ length: 3 }, () => ({ prefillUs: (tokens, cached) => 100 * (tokens - cached) })),
      blocks: 10,
      rememberedBlocks: 10,
    },
  });
  const step = (event: ConductorEvent, nowUs = 0) => {
    const effects = machine.step(nowUs, event);
    machine.check();
    return effects;
  };
  const placed = (id: string) => step({ kind: 'submit', request: request(id, promptOf(1, 10)) })[1];
  const kvEvents = () => ({ kind: 'kvEvents', instance: 2, batch: log.take() }) as const;
  log.record(words, 0, true);
  expect(step(kvEvents())).toEqual([]);
  expect(placed('a')).toMatchObject({ instance: 2 });
  // A wait of 600 us there, and 1,000 us for the whole prompt elsewhere.
  expect(placed('b')).toMatchObject({ instance: 0 });
  step(reported('a', { kind: 'started', cachedTokens: 4 }, 2));
  expect(machine.blocks).toMatchObject({ hits: 1, misses: { neverSeen: 1, evicted: 0, elsewhere: 0, partial: 1 } });
  // No block was cached after all: a wait of 1,000 us.
  step(reported('b', { kind: 'started', cachedTokens: 0 }));
  expect(machine.blocks.misses).toEqual({ neverSeen: 2, evicted: 0, elsewhere: 1, partial: 2 });
  step(reported('a', tokens, 2), 600);
  step(reported('b', tokens), 1000);
  for (const [id, instance] of [
    ['a', 2],
    ['b', 0],
  ] as const)
    step(reported(id, finished, instance), 2000);

  log.record(words, 0, false);
  const lost = log.take();
  log.record(words, 4, true);
  expect(step(kvEvents())).toEqual([{ kind: 'requestSnapshot', instance: 2 }]);
  step({ kind: 'snapshot', instance: 2, snapshot: log.snapshot(words.slice(4)) });
  expect(step({ kind: 'kvEvents', instance: 2, batch: lost })).toEqual([]);
  // The instance has the second block alone, which is no prefix.
  expect(placed('c')).toMatchObject({ instance: 0 });
  step({ kind: 'instanceFailed', instance: 0 });
  expect(placed('d')).toMatchObject({ instance: 1 });
});
