// Entry of a thread that at its first request waits, as for activations of another thread, or exits once that thread waits, or does nothing. It reports how the wait ended.
import { workerData } from 'node:worker_threads';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';
import { StepInterrupt } from '../../../dist/runtime/threads/step-interrupt.js';
import { publishTo, subscribeTo } from '../../../dist/runtime/threads/thread-bus.js';

const { settings, endpoint, address, incarnation, abort } = workerData;
const { does, state } = settings;
const [waiting, stopped, late] = [1, 2, 3];
/** Five times the longest wait for activations. */
const waitsMs = 5_000;

const bus = new MemoryBus(endpoint);
const interrupt = new StepInterrupt(abort);
let endReceived = false;
subscribeTo(bus, 'gone', ['*', '*'], () => {
  endReceived = true;
});

/** Waits again after other interrupts: the request itself may be one. */
function wait() {
  Atomics.store(state, 0, waiting);
  Atomics.notify(state, 0);
  const end = performance.now() + waitsMs;
  while (!endReceived && performance.now() < end) {
    interrupt.acknowledge();
    bus.drain();
    interrupt.stepBegins({ background: false, waiting: !endReceived });
    while (!endReceived && Atomics.load(abort, 0) === 0 && performance.now() < end) Atomics.wait(state, 0, waiting, 1);
    interrupt.stepEnded();
  }
  Atomics.store(state, 0, endReceived ? stopped : late);
}

subscribeTo(bus, 'command', [address, incarnation], ({ kind }) => {
  if (kind === 'close') void bus.close();
  if (kind !== 'submit') return;
  if (does === 'waits') wait();
  if (does !== 'dies') return;
  Atomics.wait(state, 0, 0);
  process.exit(4);
});
const pages = { total: 0, used: 0, cached: 0, free: 0 };
const root = { modelFingerprint: '', weightForm: 'native', inputForm: 'bf16', kvType: 'bf16', rope: '' };
const snapshot = { ready: true, waiting: 0, running: 0, pages };
publishTo(bus, 'output', [address, incarnation], {
  kind: 'ready',
  description: { capacityTokens: 1000 },
  snapshot,
  root,
});
