// Compute threads that hang in a native call: their requests continue elsewhere or fail, and they restart when the call returns.
import { spawnSync } from 'node:child_process';
import { closeSync, constants, openSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { defaultWatchdog } from '../../../src/core/membership/step-watchdog.ts';
import type { GenerationEvent } from '../../../src/core/protocol/ports.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { joinCluster } from '../../../src/runtime/processes/join.ts';
import { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { temporaryFolder } from '../../weights/temporary.ts';
import { settled } from '../bus/settled.ts';
import { admitAll, liveRequest } from '../threads/instances.ts';
import { busMembers, pagesHere, vocabSize } from './bus-members.ts';

const members = busMembers();
const entry = new URL('./hanging-worker.mjs', import.meta.url);
const folder = temporaryFolder();
let fifo = '';
const state = new Int32Array(new SharedArrayBuffer(4));
beforeEach(() => {
  fifo = join(folder.path, 'fifo');
  // One serves all tests.
  spawnSync('mkfifo', [fifo]);
  // The watchdog observes at an interval; other timers are real.
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
  Atomics.store(state, 0, 0);
});
afterEach(() => {
  release();
  vi.useRealTimers();
});

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setImmediate(resolve));
}

/** Advances the fake clock until the promise resolves. */
async function passing<T>(promise: Promise<T>): Promise<T> {
  let isDone = false;
  void promise.finally(() => {
    isDone = true;
  });
  await until(() => {
    vi.advanceTimersByTime(1);
    return isDone;
  });
  return promise;
}

/** Waits until the thread hangs, and lets the watchdog observe it for longer than its floor. */
async function observeHang(): Promise<void> {
  await until(() => Atomics.load(state, 0) === 1);
  vi.advanceTimersByTime(defaultWatchdog.floorUs / 1000 + 2000);
  await settled();
}

/** The native call returns. */
const release = (): void => closeSync(openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK));

function cluster(fifos: readonly (string | undefined)[], log: string[]): LiveCluster {
  const instances = fifos.map((own) => ({ role: 'mixed' as const, settings: { fifo: own, state } }));
  const options = { entry, instances, queueMax: 4, admission: admitAll, restarts: true };
  return new LiveCluster({ ...options, log: (line) => void log.push(line) });
}

function submit(to: LiveCluster, id: string): GenerationEvent[] {
  const events: GenerationEvent[] = [];
  to.submit(liveRequest(id, [1, 2, 3], 1), (event) => events.push(event));
  return events;
}

it('a request of an instance that hangs continues on another one, and the instance restarts when its call returns', async () => {
  const log: string[] = [];
  const live = cluster([fifo, undefined], log);
  await live.ready();
  // Each instance receives one.
  const both = [submit(live, 'a'), submit(live, 'b')];
  // Long before the watchdog takes the instance for hung, new requests avoid it.
  await until(() => Atomics.load(state, 0) === 1 && both.some((events) => events.at(-1)?.kind === 'finished'));
  vi.advanceTimersByTime(7000);
  expect(log).toEqual(['Instance 0: its step takes far longer than predicted: new requests avoid it']);
  const later = ['c', 'd'].map((id) => submit(live, id));
  await until(() => later.every((events) => events.at(-1)?.kind === 'finished'));
  await observeHang();
  await until(() => both.every((events) => events.at(-1)?.kind === 'finished'));
  expect(live.readiness()).toEqual({ kind: 'ready' });
  expect(live.instances().map(({ ready }) => ready)).toEqual([false, true]);
  release();
  await until(() => log.includes('Instance 0 serves again'));
  expect(live.instances().map(({ ready }) => ready)).toEqual([true, true]);
  await live.close();
});

it('without another instance its requests fail with the reason, /ready reports it, and closing does not wait for it', async () => {
  const log: string[] = [];
  const live = cluster([fifo], log);
  await live.ready();
  const events = submit(live, 'a');
  await observeHang();
  expect(events.at(-1)).toMatchObject({
    message: 'Cannot generate: the compute thread of the instance hangs',
  });
  expect(live.readiness()).toMatchObject({
    kind: 'incomplete',
    message: expect.stringContaining('restart the server'),
  });
  expect(log[1]).toBe(
    'Instance thread hangs: it has not advanced for 60.0 s, the limit is 60.0 s, its step was predicted to take 0.1 s',
  );
  await live.close();
  release();
});

it('a process of a cluster with a compute thread that hangs leaves, and ends with the reason', async () => {
  const hub = new MemoryHub();
  const log: string[] = [];
  const gateway = await passing(members.gateway(hub.connect(), { log: (line) => void log.push(line) }));
  const joining = joinCluster({
    ...{ bus: hub.connect(), name: 'i', incarnation: 1, log: () => {}, entry, settings: () => ({ fifo, state }) },
    ...{ role: 'mixed', pages: pagesHere, root: members.root, vocabSize },
  });
  const joined = await passing(joining);
  await passing(until(() => gateway.readiness().kind === 'ready'));
  gateway.submit(liveRequest('a', [1, 2, 3], 1), () => {});
  await until(() => Atomics.load(state, 0) === 1);
  await passing(
    until(() => log.includes('Instance i: its step takes far longer than predicted: new requests avoid it')),
  );
  await observeHang();
  expect(await joined.ended).toBe('the compute thread of the instance hangs');
  expect(joined.isHung()).toBe(true);
  await passing(until(() => log.includes('Instance i left: 0 serve')));
  await joined.close();
});
