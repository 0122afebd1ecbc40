// Checks of a record: backoff while they fail, one log line for each change, and none after the end.
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { announceMissing, RecordReconciler } from '../../../src/runtime/processes/record-reconciler.ts';
import { settled } from '../bus/settled.ts';
import { UnreliableBus } from './unreliable-bus.ts';

let bus: UnreliableBus;
let log: string[];
/** Times of the checks. */
let checksMs: number[];
/** Error of the checks; undefined: they succeed. */
let error: string | undefined;
let nowMs: number;
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  bus = new UnreliableBus(new MemoryHub().connect());
  [log, checksMs, error, nowMs] = [[], [], undefined, 0];
});
afterEach(async () => {
  vi.useRealTimers();
  await bus.close();
});

function reconcile(): RecordReconciler {
  const check = async (): Promise<void> => {
    checksMs.push(nowMs);
    if (error !== undefined) throw new Error(error);
  };
  return new RecordReconciler(bus, { what: 'a record', check, log: (line) => log.push(line) });
}

async function pass(ms: number): Promise<void> {
  await settled();
  for (const endMs = nowMs + ms; nowMs < endMs; ) {
    nowMs += 250;
    vi.advanceTimersByTime(250);
    await settled();
  }
}

it('retries failed checks with backoff despite new requests, and logs the failure and the recovery once', async () => {
  reconcile();
  error = 'no answer';
  announceMissing(bus);
  await pass(7_750);
  expect(checksMs).toEqual([0, 250, 750, 1_750, 3_750, 7_750]);
  announceMissing(bus);
  await pass(8_000);
  expect(checksMs.slice(6)).toEqual([11_750, 15_750]);
  expect(log).toEqual(['Cannot check a record: no answer']);
  error = 'nonsense';
  await pass(8_000);
  expect(log.slice(1)).toEqual(['Cannot check a record: nonsense']);
  error = undefined;
  await pass(60_000);
  expect(log.slice(2)).toEqual(['Can check a record again']);
  expect(checksMs).toHaveLength(11);
  // The backoff starts again from its minimum.
  error = 'no answer';
  announceMissing(bus);
  const fromMs = nowMs;
  await pass(750);
  expect(checksMs.slice(11)).toEqual([fromMs, fromMs + 250, fromMs + 750]);
});

it('checks at once after a reconnection, and never while the connection is down', async () => {
  const reconciler = reconcile();
  error = 'no answer';
  reconciler.check();
  await pass(4_000);
  bus.setConnected(false);
  await pass(60_000);
  expect(checksMs).toEqual([0, 250, 750, 1_750, 3_750]);
  bus.setConnected(true);
  await pass(250);
  expect(checksMs.slice(5)).toEqual([64_000, 64_250]);
  expect(log).toHaveLength(1);
});

it.each(['stop', 'close'] as const)('checks, waits for and logs nothing after %s', async (how) => {
  const reconciler = reconcile();
  error = 'no answer';
  reconciler.check();
  await pass(1_000);
  await (how === 'stop' ? reconciler.stop() : bus.close());
  await settled();
  expect(vi.getTimerCount()).toBe(0);
  reconciler.check();
  announceMissing(bus);
  error = 'another';
  await pass(60_000);
  expect(checksMs).toEqual([0, 250, 750]);
  expect(log).toEqual(['Cannot check a record: no answer']);
});

it('stop resolves when the current check has ended', async () => {
  let end: () => void = () => {};
  const check = (): Promise<void> =>
    new Promise((resolve) => {
      end = resolve;
    });
  const reconciler = new RecordReconciler(bus, { what: 'a record', check, log: (line) => log.push(line) });
  reconciler.check();
  let stopped = false;
  const stopping = reconciler.stop().then(() => {
    stopped = true;
  });
  await settled();
  expect(stopped).toBe(false);
  end();
  await stopping;
  expect(log).toEqual([]);
});
