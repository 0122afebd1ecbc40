// Interrupts of steps: none is lost, whenever it is sent.
import { Worker } from 'node:worker_threads';
import { expect, test, vi } from 'vitest';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { type InterruptReason, StepInterrupt, type StepKind } from '../../../src/runtime/threads/step-interrupt.ts';
import { admitAll, liveRequest } from './instances.ts';

const isStopped = ({ polled }: StepInterrupt): boolean => polled[0] !== 0;
const reasons: readonly InterruptReason[] = ['request', 'cancelOrLoss'];

test.each<StepKind & { readonly stops: readonly InterruptReason[] }>([
  { background: false, waiting: false, stops: [] },
  { background: true, waiting: false, stops: ['request'] },
  { background: false, waiting: true, stops: ['request', 'cancelOrLoss'] },
  { background: true, waiting: true, stops: ['request', 'cancelOrLoss'] },
])(
  'a step stops for interrupts during it and before it: background $background, waiting $waiting',
  ({ stops, ...step }) => {
    for (const reason of reasons) {
      const own = new StepInterrupt();
      const other = new StepInterrupt(own.polled);
      // Before the step is published: the interrupt was acknowledged.
      other.notify(reason);
      own.acknowledge();
      own.stepBegins(step);
      expect(isStopped(own)).toBe(false);
      other.notify(reason);
      expect(isStopped(own)).toBe(stops.includes(reason));
      own.stepEnded();
      own.acknowledge();
      other.notify(reason);
      expect(isStopped(own)).toBe(false);
      own.stepBegins(step);
      expect(isStopped(own)).toBe(stops.includes(reason));
    }
  },
);

test('arrived activations end the wait, and no interrupt stops the following computation', () => {
  const own = new StepInterrupt();
  own.acknowledge();
  own.stepBegins({ background: false, waiting: true });
  // As the kernels do.
  Atomics.store(own.polled, 2, 0);
  for (const reason of reasons) own.notify(reason);
  expect(isStopped(own)).toBe(false);
});

test('an interrupt sent at any point of the start of a step stops it', () => {
  for (const outer of ['notifies', 'begins'] as const)
    for (let point = 0; point < 8; point++) {
      const own = new StepInterrupt();
      const other = new StepInterrupt(own.polled);
      own.acknowledge();
      const notify = (): void => other.notify('cancelOrLoss');
      const begin = (): void => own.stepBegins({ background: false, waiting: true });
      let left = point;
      const interleaved = <Args extends readonly unknown[]>(access: (...args: Args) => number) => {
        return (...args: Args): number => {
          if (left-- === 0) (outer === 'notifies' ? begin : notify)();
          return access(...args);
        };
      };
      const { load, store, add } = Atomics;
      vi.stubGlobal('Atomics', {
        load: interleaved((all: Int32Array, at: number) => load(all, at)),
        store: interleaved((all: Int32Array, at: number, value: number) => store(all, at, value)),
        add: interleaved((all: Int32Array, at: number, value: number) => add(all, at, value)),
      });
      (outer === 'notifies' ? notify : begin)();
      vi.unstubAllGlobals();
      // The outer call had fewer accesses.
      if (left >= 0) (outer === 'notifies' ? begin : notify)();
      expect(isStopped(own), `${outer}, ${point}`).toBe(true);
    }
});

test('every interrupt ends one wait of a thread that waits repeatedly', async () => {
  const rounds = 5_000;
  const counts = new Int32Array(new SharedArrayBuffer(12));
  const [sent, received, missed] = [0, 1, 2];
  const hub = new MemoryHub();
  const bus = hub.connect();
  const own = new StepInterrupt();
  const { endpoint, transferList, drop } = hub.createEndpoint();
  const workerData = { endpoint, polled: own.polled, rounds, counts };
  const ready = new Promise<void>((resolve) => bus.subscribe('ready', () => resolve()));
  bus.subscribe('output', () => {});
  const worker = new Worker(new URL('./listening-worker.mjs', import.meta.url), {
    workerData,
    transferList: [...transferList],
  });
  const ended = new Promise<void>((resolve) => worker.once('exit', () => resolve(drop())));
  await ready;
  for (let round = 0; round < rounds; round++) {
    bus.publish('interrupt', new Uint8Array());
    own.notify('cancelOrLoss');
    Atomics.add(counts, sent, 1);
    // A thread that has ended receives nothing.
    if (Atomics.wait(counts, received, round, 10_000) === 'timed-out') break;
  }
  await ended;
  await bus.close();
  expect({ received: counts[received], missed: counts[missed] }).toEqual({ received: rounds, missed: 0 });
});

test('a thread that waits for another thread is interrupted when that thread ends', async () => {
  const state = new Int32Array(new SharedArrayBuffer(4));
  const [waiting, stopped] = [1, 2];
  const cluster = new LiveCluster({
    entry: new URL('./waiting-worker.mjs', import.meta.url),
    instances: ['waits', 'dies', 'nothing'].map((does) => ({ role: 'mixed', settings: { does, state } })),
    ...{ admission: admitAll, queueMax: 8, log: () => {} },
  });
  await cluster.ready();
  for (const id of ['a', 'b']) cluster.submit(liveRequest(id, [1, 2, 3], 4), () => {});
  while (Atomics.load(state, 0) <= waiting) await new Promise((resolve) => setImmediate(resolve));
  await cluster.close();
  expect(state[0]).toBe(stopped);
});
