// Role switches: only for a gain, only when it lasts, and not too often.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { ConductorEvent } from '../../../src/core/protocol/events.ts';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { Conductor } from '../../../src/core/router/conductor.ts';
import { poolToGrow, RoleSwitcher, type RoleSwitchLimits } from '../../../src/core/router/roles/role-switch.ts';
import { tokenRequests } from '../../../src/core/router/token-requests.ts';
import { promptOf, request } from '../instance-world.ts';

const limits: RoleSwitchLimits = { sustainUs: 10, dwellUs: 100, gain: 1.15, loadMin: 0.5, intervalUs: 1, windowUs: 1 };
const pool = (instances: number, demand: number) => ({ instances, demand });

describe('the pool that needs an instance', () => {
  it('is the fuller one, when the switch relieves it enough and leaves the other one an instance', () => {
    expect(poolToGrow(pool(4, 4), pool(4, 1), limits)).toBe('prefill');
    expect(poolToGrow(pool(4, 1), pool(4, 4), limits)).toBe('decode');
    expect(poolToGrow(pool(4, 4), pool(4, 3.9), limits)).toBeUndefined();
    expect(poolToGrow(pool(4, 1.9), pool(4, 0), limits)).toBeUndefined();
    expect(poolToGrow(pool(7, 9), pool(1, 0.1), limits)).toBeUndefined();
  });

  it('never raises the larger load, and is never switched back at once', () => {
    const demand = fc.double({ min: 0, max: 12, noNaN: true });
    const count = fc.integer({ min: 1, max: 12 });
    fc.assert(
      fc.property(count, demand, count, demand, (p, prefill, d, decode) => {
        const role = poolToGrow(pool(p, prefill), pool(d, decode), limits);
        if (role === undefined) return;
        const more = role === 'prefill' ? 1 : -1;
        const before = Math.max(prefill / p, decode / d);
        expect(Math.max(prefill / (p + more), decode / (d - more))).toBeLessThan(before);
        expect(Math.min(p + more, d - more)).toBeGreaterThanOrEqual(1);
        expect(poolToGrow(pool(p + more, prefill), pool(d - more, decode), limits)).not.toBe(
          role === 'prefill' ? 'decode' : 'prefill',
        );
      }),
    );
  });

  it('receives one after it has needed one for `sustainUs`, and no further one for `dwellUs`', () => {
    const switcher = new RoleSwitcher(limits);
    const decide = (nowUs: number, prefill: number) => switcher.decide(nowUs, pool(4, prefill), pool(4, 1));
    expect([decide(0, 4), decide(9, 4), decide(10, 4)]).toEqual([undefined, undefined, 'prefill']);
    expect([decide(60, 8), decide(109, 8), decide(110, 8)]).toEqual([undefined, undefined, 'prefill']);
    // A moment without the need restarts the wait.
    expect([decide(300, 1), decide(301, 4), decide(310, 4), decide(311, 4)]).toEqual([
      undefined,
      undefined,
      undefined,
      'prefill',
    ]);
  });
});

describe('the last instance of a role', () => {
  const cluster = (roles: readonly InstanceRole[], roleSwitch?: RoleSwitchLimits) => {
    const conductor = new Conductor<GenerationRequest>({
      ...{ requests: tokenRequests, queueMax: 9, roleSwitch },
      instances: roles.map((role) => ({ capacityTokens: 1900, role })),
      retries: { attemptsMax: 3, detection: { reportTimeoutUs: 1e9, requestTimeoutUs: 1e9 } },
    });
    return (event: ConductorEvent) =>
      conductor.step(0, event).flatMap((effect): (readonly [number, InstanceRole | number | undefined])[] => {
        if (effect.kind === 'roleSwitched') return [[effect.instance, effect.role]];
        return effect.kind === 'forward' ? [[effect.instance, effect.decodeAt]] : [];
      });
  };
  const submit = { kind: 'submit', request: request('a', promptOf(1, 40), { maxTokens: 9 }) } as const;

  it('is replaced at once, and its requests continue', () => {
    const deliver = cluster(['prefill', 'decode', 'decode'], limits);
    expect(deliver(submit)).toEqual([[0, 1]]);
    expect(deliver({ kind: 'instanceFailed', instance: 0 })).toEqual([
      [2, 'prefill'],
      [2, 1],
    ]);
    // The only instance that is left computes both.
    expect(deliver({ kind: 'instanceFailed', instance: 1 })).toEqual([
      [2, 'mixed'],
      [2, undefined],
    ]);
  });

  it('is not replaced without role switches, or by instances that keep their roles', () => {
    const without = cluster(['prefill', 'decode', 'decode']);
    expect(without({ kind: 'instanceFailed', instance: 0 })).toEqual([]);
    const deliver = cluster(['prefill', 'decode'], limits);
    deliver({ kind: 'instanceFailed', instance: 1 });
    deliver({ kind: 'instanceJoined', instance: 1, incarnation: 2, role: 'decode', keepsRole: true });
    expect(deliver({ kind: 'instanceFailed', instance: 0 })).toEqual([]);
  });
});
