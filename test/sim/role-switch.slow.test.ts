// Roles that change while requests run.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { InstanceRole } from '../../src/core/protocol/instance-report.ts';
import { Conductor } from '../../src/core/router/conductor.ts';
import { cluster, config, requestOf, run, traces } from './small-cluster.ts';

const slo = { ttft: { us: 100_000 }, tbt: { us: 30_000 } };
const roleSwitch = {
  sustainUs: 20_000,
  dwellUs: 100_000,
  gain: 1.1,
  loadMin: 0.05,
  intervalUs: 10_000,
  windowUs: 100_000,
};

describe('an instance that changes its role', () => {
  const make = (...roles: readonly InstanceRole[]) =>
    new Conductor<{ readonly id: string; readonly tokens: number }>({
      instances: roles.map((role) => ({ capacityTokens: 1000, role })),
      queueMax: 10,
      requests: {
        size: ({ tokens }) => ({ promptTokens: tokens, outputTokensMax: 10 }),
        isBatchJob: () => false,
        progressOf: () => undefined,
      },
    });

  it('receives new requests in its new role, and keeps its running ones', () => {
    const conductor = make('prefill', 'decode', 'decode');
    const submit = (id: string) => conductor.step(0, { kind: 'submit', request: { id, tokens: 50 } });
    expect(submit('a')).toMatchObject([{ kind: 'emit' }, { kind: 'forward', instance: 0, decodeAt: 1 }]);
    expect(conductor.step(0, { kind: 'switchRole', instance: 1, role: 'prefill' })).toEqual([
      { kind: 'roleSwitched', instance: 1, role: 'prefill' },
    ]);
    expect(submit('b')).toMatchObject([{ kind: 'emit' }, { kind: 'forward', instance: 1, decodeAt: 2 }]);
    conductor.check();
    const tokens = { kind: 'tokens', tokens: Int32Array.of(1), logprobs: undefined } as const;
    expect(conductor.step(0, { kind: 'generationEvent', instance: 1, id: 'a', event: tokens })).toHaveLength(1);
    expect(
      conductor.step(0, { kind: 'generationEvent', instance: 1, id: 'a', event: { kind: 'finished', reason: 'stop' } }),
    ).toHaveLength(1);
    expect(conductor.accepted).toBe(1);
  });

  it('does not change when a role would be left without an instance', () => {
    const pair = [
      [0, 'decode'],
      [1, 'prefill'],
      [1, 'mixed'],
      [1, 'decode'],
    ] as const;
    for (const [instance, role] of pair)
      expect(make('prefill', 'decode').step(0, { kind: 'switchRole', instance, role })).toMatchObject([
        { kind: 'ignored' },
      ]);
    expect(make('mixed').step(0, { kind: 'switchRole', instance: 7, role: 'decode' })).toMatchObject([
      { kind: 'ignored' },
    ]);
    const conductor = make('prefill', 'decode', 'decode');
    conductor.step(0, { kind: 'instanceFailed', instance: 2 });
    expect(conductor.step(0, { kind: 'switchRole', instance: 1, role: 'prefill' })).toMatchObject([
      { kind: 'ignored' },
    ]);
  });
});

describe('an instance that keeps its role', () => {
  it('is not switched, until its next incarnation may change roles', () => {
    const conductor = new Conductor<{ readonly id: string; readonly tokens: number }>({
      instances: (['prefill', 'decode', 'decode'] as const).map((role) => ({ capacityTokens: 1000, role })),
      queueMax: 10,
      requests: {
        size: ({ tokens }) => ({ promptTokens: tokens, outputTokensMax: 10 }),
        isBatchJob: () => false,
        progressOf: () => undefined,
      },
    });
    conductor.step(0, { kind: 'instanceFailed', instance: 1 });
    conductor.step(0, { kind: 'instanceJoined', instance: 1, incarnation: 1, role: 'decode', keepsRole: true });
    const toPrefill = (instance: number) => conductor.step(0, { kind: 'switchRole', instance, role: 'prefill' });
    expect(toPrefill(1)).toMatchObject([{ kind: 'ignored' }]);
    expect(toPrefill(2)).toEqual([{ kind: 'roleSwitched', instance: 2, role: 'prefill' }]);
    conductor.step(0, { kind: 'instanceFailed', instance: 1 });
    conductor.step(0, { kind: 'instanceJoined', instance: 1, incarnation: 2, role: 'decode', keepsRole: false });
    conductor.step(0, { kind: 'switchRole', instance: 2, role: 'decode' });
    expect(toPrefill(1)).toEqual([{ kind: 'roleSwitched', instance: 1, role: 'prefill' }]);
  });
});

describe('roles that follow the work', () => {
  it('serve more of a shifting workload, and fail no request', () => {
    // Long prompts with short outputs for half a second, then short prompts with long outputs.
    const trace = Array.from({ length: 360 }, (_, i) =>
      i < 60 ? requestOf(i, i * 8_000, 150, 3) : requestOf(i, 480_000 + (i - 60) * 6_000, 20, 60),
    );
    const loose = { ttft: { us: 200_000 }, tbt: { us: 30_000 } };
    const instances = cluster({ prefill: 3, decode: 3 }, { blocks: 60 });
    const fixed = run(trace, { instances, admission: { ...config.admission, slo: loose } }).outcome;
    const follows = run(trace, { instances, admission: { ...config.admission, slo: loose, roleSwitch } }).outcome;
    expect(follows.roleSwitches).toBeGreaterThan(0);
    expect([fixed.completedRequests, follows.completedRequests]).toEqual([360, 360]);
    expect(follows.withinSlo).toBeGreaterThan(2 * fixed.withinSlo);
  });

  it('end every request once, and have the same hash with equal steps run one by one', () => {
    let switches = 0;
    fc.assert(
      fc.property(traces, fc.boolean(), (trace, inline) => {
        const admission = { ...config.admission, slo, roleSwitch, inlineTokens: inline ? 64 : undefined };
        const dense = trace.map((request) => ({ ...request, arrivalUs: Math.floor(request.arrivalUs / 4) }));
        const outcomes = [true, false].map((coalesce) => {
          const { outcome, unfinished } = run(dense, {
            instances: cluster({ prefill: 2, decode: 2 }, { coalesce }),
            admission,
          });
          expect([outcome.requests, outcome.completedRequests, unfinished]).toEqual([trace.length, trace.length, 0]);
          return outcome;
        });
        expect(outcomes[0]?.stateHash).toBe(outcomes[1]?.stateHash);
        switches += outcomes[0]?.roleSwitches ?? 0;
      }),
      { numRuns: 40 },
    );
    expect(switches).toBeGreaterThan(0);
  });
});
