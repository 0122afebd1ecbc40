// Interrupts of steps: none is lost, whenever it is sent.
import { Worker } from 'node:worker_threads';
import { expect, test, vi } from 'vitest';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { type InterruptReason, StepInterrupt, type StepKind } from '../../../src/runtime/threads/step-interrupt.ts';
import { everyone, liveRequest } from './instances.ts';

const isStopped = ({ polled }: StepInterrupt): boolean => polled[0] !== 0;
const comers: readonly InterruptReason[] = ['request', 'end'];

test.each<StepKind & { readonly stops: readonly InterruptReason[] }>([
  { background: false, waiting: false, stops: [] },
  { background: true, waiting: false, stops: ['request'] },
  { background: false, waiting: true, stops: ['request', 'end'] },
  { background: true, waiting: true, stops: ['request', 'end'] },
])('a step stops for interrupts during it and before it: jobs $jobs, waits $waits', ({ stops, ...manner }) => {
  for (const comer of comers) {
    const words = new StepInterrupt();
    const other = new StepInterrupt(words.polled);
    // Before the step is published: the interrupt was acknowledged.
    other.notify(comer);
    words.acknowledge();
    words.stepBegins(manner);
    expect(isStopped(words)).toBe(false);
    other.notify(comer);
    expect(isStopped(words)).toBe(stops.includes(comer));
    words.stepEnded();
    words.acknowledge();
    other.notify(comer);
    expect(isStopped(words)).toBe(false);
    words.stepBegins(manner);
    expect(isStopped(words)).toBe(stops.includes(comer));
  }
});

test('arrived activations end the wait, and no interrupt stops the following computation', () => {
  const words = new StepInterrupt();
  words.acknowledge();
  words.stepBegins({ background: false, waiting: true });
  // As the kernels do it.
  Atomics.store(words.polled, 2, 0);
  for (const comer of comers) words.notify(comer);
  expect(isStopped(words)).toBe(false);
});

test('an interrupt sent while a step begins is lost at no point of either', () => {
  for (const outer of ['comes', 'begins'] as const)
    for (let point = 0; point < 8; point++) {
      const words = new StepInterrupt();
      const other = new StepInterrupt(words.polled);
      words.acknowledge();
      const comes = (): void => other.notify('end');
      const begins = (): void => words.stepBegins({ background: false, waiting: true });
      let left = point;
      const behind = <Words extends readonly unknown[]>(access: (...words: Words) => number) => {
        return (...words: Words): number => {
          if (left-- === 0) (outer === 'comes' ? begins : comes)();
          return access(...words);
        };
      };
      const { load, store, add } = Atomics;
      vi.stubGlobal('Atomics', {
        load: behind((all: Int32Array, at: number) => load(all, at)),
        store: behind((all: Int32Array, at: number, value: number) => store(all, at, value)),
        add: behind((all: Int32Array, at: number, value: number) => add(all, at, value)),
      });
      (outer === 'comes' ? comes : begins)();
      vi.unstubAllGlobals();
      // It has ended before.
      if (left >= 0) (outer === 'comes' ? begins : comes)();
      expect(isStopped(words), `${outer}, ${point}`).toBe(true);
    }
});

test('a thread that waits repeatedly is woken by every interrupt', async () => {
  const rounds = 5_000;
  const counts = new Int32Array(new SharedArrayBuffer(12));
  const [come, heard, missed] = [0, 1, 2];
  const hub = new MemoryHub();
  const bus = hub.connect();
  const words = new StepInterrupt();
  const { endpoint, transferList, drop } = hub.createEndpoint();
  const workerData = { endpoint, polled: words.polled, rounds, counts };
  const ready = new Promise<void>((resolve) => bus.subscribe('ready', () => resolve()));
  bus.subscribe('said', () => {});
  const worker = new Worker(new URL('./listening-worker.mjs', import.meta.url), {
    workerData,
    transferList: [...transferList],
  });
  const ended = new Promise<void>((resolve) => worker.once('exit', () => resolve(drop())));
  await ready;
  for (let round = 0; round < rounds; round++) {
    bus.publish('come', new Uint8Array());
    words.notify('end');
    Atomics.add(counts, come, 1);
    // One that has died hears nothing any more.
    if (Atomics.wait(counts, heard, round, 10_000) === 'timed-out') break;
  }
  await ended;
  await bus.close();
  expect({ heard: counts[heard], missed: counts[missed] }).toEqual({ heard: rounds, missed: 0 });
});

test('a thread that waits for another one stops when that one is gone', async () => {
  const state = new Int32Array(new SharedArrayBuffer(4));
  const [waiting, stopped] = [1, 2];
  const cluster = new LiveCluster({
    entry: new URL('./waiting-worker.mjs', import.meta.url),
    instances: ['waits', 'dies', 'nothing'].map((does) => ({ role: 'mixed', settings: { does, state } })),
    ...{ admission: everyone, queueMax: 8, log: () => {} },
  });
  await cluster.ready();
  for (const id of ['a', 'b']) cluster.submit(liveRequest(id, [1, 2, 3], 4), () => {});
  while (Atomics.load(state, 0) <= waiting) await new Promise((resolve) => setImmediate(resolve));
  await cluster.close();
  expect(state[0]).toBe(stopped);
});
