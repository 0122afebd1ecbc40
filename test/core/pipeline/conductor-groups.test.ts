// Pipeline groups at the conductor: its messages to the members, and the cancels when a member is lost or fails.
import { expect, test } from 'vitest';
import type { ConductorEffect } from '../../../src/core/protocol/effects.ts';
import type { GenerationEvent } from '../../../src/core/protocol/ports.ts';
import { Conductor } from '../../../src/core/router/conductor.ts';
import type { ConductorConfig } from '../../../src/core/router/conductor-config.ts';
import { lengthRequests } from '../../../src/core/router/length-requests.ts';
import { lengthPlacement } from '../../../src/core/router/placement/length-placement.ts';
import { Float64Pool } from '../../../src/core/scheduler/executor/float64-pool.ts';
import { LengthRequest } from '../../../src/core/scheduler/executor/length-request.ts';
import { cluster, config, requestOf } from '../../sim/small-cluster.ts';

const instances = cluster({ prefill: 3, decode: 1 });
const pipeline = { members: 2, tokensOver: 100 };

function conductorWithGroup(retries?: ConductorConfig<LengthRequest>['retries']) {
  const conductor = new Conductor<LengthRequest>({
    instances: instances.map(({ role }) => ({ role, capacityTokens: 10_000 })),
    queueMax: 10,
    requests: lengthRequests,
    placement: lengthPlacement(config.placement, instances, undefined, pipeline),
    retries,
  });
  const request = new LengthRequest(requestOf(0, 0, 150, 5), 16, new Float64Pool());
  const forward = conductor.step(0, { kind: 'submit', request }).find(({ kind }) => kind === 'forward');
  if (forward?.kind !== 'forward' || forward.group === undefined) throw new Error('no group');
  conductor.check();
  return { conductor, forward, group: forward.group };
}

const cancelled = (effects: readonly ConductorEffect<LengthRequest>[]) =>
  effects.flatMap((effect) => (effect.kind === 'cancel' ? [effect.instance] : [])).sort();

test('a long prompt goes to the first member of its group, and each member is charged with its share', () => {
  const { conductor, forward, group } = conductorWithGroup();
  expect([forward.instance, forward.decodeAt]).toEqual([group.members[0], 3]);
  expect(group.members).toHaveLength(2);
  expect(group.decodeAt).toBe(3);
  // The next short prompt goes to the idle instance.
  const short = new LengthRequest(requestOf(1, 0, 20, 5), 16, new Float64Pool());
  const next = conductor.step(1, { kind: 'submit', request: short }).find(({ kind }) => kind === 'forward');
  expect(next).toMatchObject({ group: undefined });
  if (next?.kind === 'forward') expect(group.members).not.toContain(next.instance);
  expect(conductor.groupPrefills).toBe(1);
  conductor.check();
});

test('a lost or failed member fails the attempt, and all other members release it', () => {
  for (const leg of [0, 1]) {
    const { conductor, group } = conductorWithGroup();
    const lost = group.members[leg] ?? 0;
    const others = [...group.members.filter((member) => member !== lost), 3].sort();
    expect(cancelled(conductor.step(1, { kind: 'instanceFailed', instance: lost }))).toEqual(others);
    expect(conductor.accepted).toBe(0);
    conductor.check();
  }
  const { conductor, group } = conductorWithGroup();
  const event = { kind: 'failed', code: 'ENGINE_FAILED', message: 'broken', retryAfterMs: undefined } as const;
  const effects = conductor.step(1, { kind: 'generationEvent', instance: group.members[1] ?? 0, id: '0', event });
  expect(cancelled(effects)).toEqual([...group.members, 3].sort());
  expect(conductor.accepted).toBe(0);
  conductor.check();
});

test('a request that only one member still has is retried if it has not started', () => {
  const detection = { reportTimeoutUs: 100, requestTimeoutUs: 1e9 };
  const { conductor, group } = conductorWithGroup({ attemptsMax: 2, detection });
  let number = 0;
  /** At that time every instance reports, and these members report the request. Returns the number of new attempts. */
  const retriesAt = (nowUs: number, holders: readonly number[]) => {
    const report = { incarnation: 0, number: ++number, kvEventNumber: 0 };
    const requests = [{ id: '0', outputs: 0, receiving: false }];
    for (const instance of instances.keys()) {
      const own = holders.includes(instance) ? requests : [];
      conductor.step(nowUs, { kind: 'report', instance, report: { ...report, requests: own } });
    }
    const effects = conductor.step(nowUs, { kind: 'wake' });
    conductor.check();
    return effects.filter(({ kind }) => kind === 'forward').length;
  };
  const [first = 0, second = 0] = group.members;
  // The first member has it while the others join; both have it while they compute.
  for (let nowUs = 50; nowUs <= 300; nowUs += 50) expect(retriesAt(nowUs, [first])).toBe(0);
  for (let nowUs = 350; nowUs <= 600; nowUs += 50) expect(retriesAt(nowUs, [first, second])).toBe(0);
  expect(retriesAt(650, [second])).toBe(0);
  expect(retriesAt(700, [second])).toBe(1);
});

test('a cancel goes to every member until the prompt is handed off', () => {
  const first = conductorWithGroup();
  expect(cancelled(first.conductor.step(1, { kind: 'cancel', id: '0' }))).toEqual([...first.group.members, 3].sort());
  const second = conductorWithGroup();
  const { conductor, group } = second;
  conductor.step(1, {
    kind: 'generationEvent',
    instance: group.members[0] ?? 0,
    id: '0',
    event: { kind: 'started', cachedTokens: 0 },
  });
  conductor.step(2, { kind: 'prefilled', instance: group.members[1] ?? 0, id: '0' });
  const tokens = { kind: 'tokens', tokens: new Int32Array(1), logprobs: undefined } as const;
  conductor.step(3, { kind: 'generationEvent', instance: 3, id: '0', event: tokens });
  conductor.check();
  expect(cancelled(conductor.step(4, { kind: 'cancel', id: '0' }))).toEqual([3]);
  conductor.check();
});

/** A request whose prompt is handed off. */
function handedOff() {
  const conductor = new Conductor<LengthRequest>({
    instances: instances.map(({ role }) => ({ role, capacityTokens: 10_000 })),
    queueMax: 10,
    requests: lengthRequests,
    placement: lengthPlacement(config.placement, instances, undefined, undefined),
  });
  const request = new LengthRequest(requestOf(0, 0, 50, 5), 16, new Float64Pool());
  const forward = conductor.step(0, { kind: 'submit', request }).find(({ kind }) => kind === 'forward');
  if (forward?.kind !== 'forward' || forward.decodeAt === undefined) throw new Error('no instance decodes');
  const { id, instance, decodeAt } = forward;
  const onEvent = (from: number, event: GenerationEvent) => {
    const effects = conductor.step(1, { kind: 'generationEvent', instance: from, id, event });
    conductor.check();
    return effects.flatMap((effect) => (effect.kind === 'emit' ? [effect.event] : []));
  };
  return { conductor, instance, decodeAt, onEvent };
}

const tokens = { kind: 'tokens', tokens: Int32Array.of(1), logprobs: undefined } as const;
const started = { kind: 'started', cachedTokens: 16 } as const;

test('the cached tokens of the prefill instance are reported, although the decode instance has all blocks, and counted once', () => {
  const { conductor, instance, decodeAt, onEvent } = handedOff();
  onEvent(decodeAt, tokens);
  expect(onEvent(instance, started)).toEqual([started]);
  expect(onEvent(instance, started)).toEqual([]);
  expect(conductor.blocks.hits).toBe(1);
});

test('cached tokens are reported before the end, by the decode instance if the other report is late, and counted once', () => {
  const { conductor, instance, decodeAt, onEvent } = handedOff();
  const finished = { kind: 'finished', reason: 'length' } as const;
  expect([started, tokens].flatMap((event) => onEvent(decodeAt, event))).toEqual([started, tokens]);
  expect(onEvent(instance, started)).toEqual([]);
  expect(onEvent(decodeAt, finished)).toEqual([finished]);
  expect(onEvent(instance, started)).toEqual([]);
  expect(conductor.blocks.hits).toBe(1);
});
