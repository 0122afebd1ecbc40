// Remote attention over its share of a creditor: the creditor measures the load while its own steps run, and reports it to
// its debtors.
import { expect, it, vi } from 'vitest';
import { createTokenInstance } from '../../../src/core/instance/token-instance.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { LendingWire } from '../../../src/runtime/lending/lending-wire.ts';
import { LiveLending, type RemoteAttentionServers } from '../../../src/runtime/lending/live-lending.ts';
import { InstanceLoop } from '../../../src/runtime/threads/instance-loop.ts';
import { StepInterrupt } from '../../../src/runtime/threads/step-interrupt.ts';
import { publishTo, subscribeTo } from '../../../src/runtime/threads/thread-bus.ts';
import { simulatedEnds } from '../../contract/simulated-messenger.ts';
import { baseConfig, promptOf, request } from '../../core/instance-world.ts';
import { defaultPolicy, times } from '../../core/lending/borrow-world.ts';
import { FakeEngine } from '../../core/scheduler/fake-engine.ts';

/** Scripted counters of each debtor's queries. */
class ScriptedServers implements RemoteAttentionServers {
  readonly loans = [1, 2].map(() => ({ seconds: 0, restSeconds: 0 }));
  readonly shares = new Map<number, number>();
  lendBlocks(): void {}
  takeBackBlocks(): void {}
  setRemoteAttentionShare(_: number, loan: number, thousandths: number): void {
    this.shares.set(loan, thousandths);
  }
  freeRemoteAttentionServer(): void {}
  remoteCounts() {
    return { queries: 0, bytesOut: 0, bytesIn: 0, waitSeconds: 0 };
  }
  remoteAttentionCounts() {
    return countsOf({ seconds: this.loans.reduce((sum, { seconds }) => sum + seconds, 0), restSeconds: 0 });
  }
  countsOf(debtor: number) {
    return countsOf(this.loans[debtor - 1] ?? { seconds: 0, restSeconds: 0 });
  }
}

function countsOf({ seconds, restSeconds }: { seconds: number; restSeconds: number }) {
  return { queries: 0, rows: 0, refused: 0, seconds, restSeconds, bytesIn: 0, bytesOut: 0 };
}

/** Instance 0 lends a block each to instances 1 and 2. Remote attention may take a fifth of a core. */
function creditor() {
  const servers = new ScriptedServers();
  const sent: [number, LendingWire][] = [];
  const lending = new LiveLending({
    routes: {
      instance: 0,
      send: (to, wire) => sent.push([to, wire]),
      sendToManager: () => {},
      announceServer: () => {},
    },
    messenger: simulatedEnds()[0].messenger,
    ...{ servers, server: 7, layers: [0], blockBytes: 1, remoteAttentionPermilleMax: 200 },
    attention: {
      kind: 'dist',
      heads: { layers: 1, heads: 1, headDim: 32 },
      kvBytesPerToken: 1,
      ...{ openReader: () => 0, freeReader: () => {} },
    },
    host: {
      ...{
        connectServer: () => 0,
        pageTable: () => new Int32Array(),
        loanCounts: (debtor) => servers.countsOf(debtor),
      },
      ...{ copyPages: () => {}, finishLoads: () => {}, isRead: () => false },
    },
  });
  for (const to of [1, 2]) lending.carryOut({ kind: 'lendBlocks', to, blocks: [to], pages: Int32Array.of(to) });
  const loads = () =>
    sent.splice(0).flatMap(([to, wire]) => (wire.kind === 'remoteAttentionLoad' ? [[to, wire.permille]] : []));
  return { lending, servers, loads };
}

const halves = { attentionShares: [1, 2].map((debtor) => ({ debtor, permille: 100 })) };

it('is reported to the debtor that takes it, as its load without the limit, while steps run most of the time', () => {
  const { lending, servers, loads } = creditor();
  lending.onStepRan(10e6, 5e6, halves);
  // One second with this time in steps, and the first debtor's attention and rests, in seconds. Returns the reports.
  const second = (at: number, step: number, attention: number, rest: number, shares = halves) => {
    const [first] = servers.loans;
    if (first !== undefined) first.seconds += attention;
    if (first !== undefined) first.restSeconds += rest;
    lending.onStepRan(10e6 + at * 1e6, step * 1e6, shares);
    return loads();
  };
  expect(second(1, 0.9, 0.08, 0.5)).toEqual([[1, 160]]);
  expect(second(2, 0.9, 0.08, 0.1)).toEqual([]);
  // While few steps run, remote attention delays none.
  expect(second(3, 0.4, 0.6, 0)).toEqual([]);
  expect(second(4, 0.6, 0.6, 0)).toEqual([[1, 600]]);
  // Not more than once a second.
  expect(second(4.5, 0.5, 0.5, 0)).toEqual([]);
  expect(second(5, 0.5, 0, 0)).toEqual([[1, 500]]);
  expect(second(6, 0.9, 0.9, 0, { attentionShares: [] })).toEqual([]);
});

it('of two equal debtors is reported to each as its own, and bounded by the share of each', () => {
  const { lending, servers, loads } = creditor();
  expect([...servers.shares]).toEqual([
    [1, 200],
    [2, 200],
  ]);
  lending.onStepRan(10e6, 5e6, halves);
  for (const loan of servers.loans) loan.seconds += 0.15;
  lending.onStepRan(11e6, 0.9e6, halves);
  // The sum would be 300.
  expect(loads()).toEqual([
    [1, 150],
    [2, 150],
  ]);
  expect([...servers.shares]).toEqual([
    [1, 100],
    [2, 100],
  ]);
});

it('has its share of steps reported to the own machine once a second, without the attention between steps', () => {
  const { lending, servers } = creditor();
  const shares = () => lending.poll(0).filter(({ kind }) => kind === 'servedAttention');
  const step = (at: number, us: number, beside: number, before: number) => {
    const [loan] = servers.loans;
    if (loan !== undefined) loan.seconds += before;
    lending.onStepBegins();
    if (loan !== undefined) loan.seconds += beside;
    lending.onStepRan(at * 1e6, us, halves);
    return shares();
  };
  step(10, 1e5, 0, 0);
  expect(step(10.5, 200_000, 0.03, 5)).toEqual([]);
  expect(step(11, 200_000, 0.05, 5)).toEqual([{ kind: 'servedAttention', permille: 200 }]);
  expect(shares()).toEqual([]);
  expect(step(12, 200_000, 0, 5)).toEqual([{ kind: 'servedAttention', permille: 0 }]);
  expect(step(13, 200_000, 0, 0)).toEqual([]);
});

it('is measured when steps have run', async () => {
  const { lending } = creditor();
  const measured = vi.spyOn(lending, 'onStepRan');
  const hub = new MemoryHub();
  const [inner, outer] = [hub.connect(), hub.connect()];
  const ended = new Promise<void>((resolve) => {
    subscribeTo(outer, 'output', ['0', 1], (message) => {
      if (message.kind === 'events' && message.events.some(([, { kind }]) => kind === 'finished')) resolve();
    });
  });
  const engine = new FakeEngine(baseConfig.pages, baseConfig.groups);
  const run = {
    run: (plan: Parameters<FakeEngine['run']>[0]) => ({ kind: 'done', result: engine.run(plan) }) as const,
  };
  const place = { bus: inner, address: '0', incarnation: 1 };
  const abort = new StepInterrupt().polled;
  const memory = { hostBlocks: 0, borrowableBlocks: 0, stagingBlocks: 1, rangeBlocks: 1 };
  const machine = createTokenInstance({
    ...baseConfig,
    borrowing: { ...{ instance: 0, policy: defaultPolicy, times }, ...memory },
    serverOf: () => ({ server: 0, loan: 0 }),
  });
  new InstanceLoop(machine, run, place, abort, () => {}, { lending }).start();
  publishTo(outer, 'command', ['0', 1], { kind: 'submit', request: request('a', promptOf(1, 20)) });
  await ended;
  const creditorOf = machine.components.borrower?.rmanager.creditor;
  expect(measured.mock.lastCall?.slice(1)).toEqual([expect.any(Number), creditorOf]);
  expect(creditorOf).toBeDefined();
  await Promise.all([inner.close(), outer.close()]);
});
