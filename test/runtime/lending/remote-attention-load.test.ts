// Remote attention over its share of a creditor: the creditor measures the load while its own steps run, and reports it to
// its debtors.
import { expect, it } from 'vitest';
import { createTokenInstance } from '../../../src/core/instance/token-instance.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { LendingWire } from '../../../src/runtime/lending/lending-wire.ts';
import { LiveLending, type RemoteAttentionServers } from '../../../src/runtime/lending/live-lending.ts';
import { InstanceLoop } from '../../../src/runtime/threads/instance-loop.ts';
import { StepInterrupt } from '../../../src/runtime/threads/step-interrupt.ts';
import { publishTo, subscribeTo } from '../../../src/runtime/threads/thread-bus.ts';
import { simulatedEnds } from '../../contract/simulated-messenger.ts';
import { baseConfig, promptOf, request } from '../../core/instance-world.ts';
import { FakeEngine } from '../../core/scheduler/fake-engine.ts';

/** Remote attention servers with scripted counters. */
class ScriptedServers implements RemoteAttentionServers {
  seconds = 0;
  restSeconds = 0;
  reads = 0;
  lendBlocks(): void {}
  takeBackBlocks(): void {}
  setRemoteAttentionShare(): void {}
  freeRemoteAttentionServer(): void {}
  remoteCounts() {
    return { queries: 0, bytesOut: 0, bytesIn: 0, waitSeconds: 0 };
  }
  remoteAttentionCounts() {
    this.reads++;
    const { seconds, restSeconds } = this;
    return { queries: 0, rows: 0, refused: 0, seconds, restSeconds, bytesIn: 0, bytesOut: 0 };
  }
}

/** Instance 0 lends a block to instance 1. Remote attention may take a tenth of a core. */
function creditor() {
  const servers = new ScriptedServers();
  const sent: LendingWire[] = [];
  const lending = new LiveLending({
    routes: {
      instance: 0,
      send: (to, wire) => to === 1 && sent.push(wire),
      sendToManager: () => {},
      announceServer: () => {},
    },
    messenger: simulatedEnds()[0].messenger,
    ...{ servers, server: 7, layers: [0], blockBytes: 1, remoteAttentionPermilleMax: 100 },
    host: {
      ...{ connectServer: () => 0, pageTable: () => new Int32Array(), loanCounts: () => undefined },
      ...{ copyPages: () => {}, finishLoads: () => {}, isRead: () => false },
    },
  });
  lending.carryOut({ kind: 'lendBlocks', to: 1, blocks: [3], pages: Int32Array.of(9) });
  const loads = (): readonly LendingWire[] => sent.splice(0).filter(({ kind }) => kind === 'remoteAttentionLoad');
  return { lending, servers, loads };
}

it('is reported as the load without the limit, while steps run most of the time', () => {
  const { lending, servers, loads } = creditor();
  lending.onStepRan(10e6, 5e6);
  // One second with this time in steps, remote attention and throttling, in seconds. Returns the reports.
  const second = (at: number, step: number, attention: number, throttled: number) => {
    servers.seconds += attention;
    servers.restSeconds += throttled;
    lending.onStepRan(10e6 + at * 1e6, step * 1e6);
    return loads();
  };
  expect(second(1, 0.9, 0.08, 0.5)).toEqual([{ kind: 'remoteAttentionLoad', permille: 160 }]);
  expect(second(2, 0.9, 0.08, 0.1)).toEqual([]);
  // While few steps run, remote attention delays none.
  expect(second(3, 0.4, 0.6, 0)).toEqual([]);
  expect(second(4, 0.6, 0.6, 0)).toEqual([{ kind: 'remoteAttentionLoad', permille: 600 }]);
  // Not more than once a second.
  expect(second(4.5, 0.5, 0.5, 0)).toEqual([]);
  expect(second(5, 0.5, 0, 0)).toEqual([{ kind: 'remoteAttentionLoad', permille: 500 }]);
  lending.carryOut({ kind: 'takeBackBlocks', from: 1, blocks: [3] });
  expect(second(6, 0.9, 0.9, 0)).toEqual([]);
});

it('is measured when steps have run', async () => {
  const { lending, servers } = creditor();
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
  new InstanceLoop(createTokenInstance(baseConfig), run, place, abort, () => {}, { lending }).start();
  publishTo(outer, 'command', ['0', 1], { kind: 'submit', request: request('a', promptOf(1, 20)) });
  await ended;
  expect(servers.reads).toBeGreaterThan(0);
  await Promise.all([inner.close(), outer.close()]);
});
