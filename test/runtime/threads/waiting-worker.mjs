// Entry of a thread that at its first request waits, as for activations of another one, or dies once that one waits, or does nothing. It reports how the wait ended.
import { workerData } from 'node:worker_threads';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';
import { StepInterrupt } from '../../../dist/runtime/threads/step-interrupt.js';
import { publishTo, subscribeTo } from '../../../dist/runtime/threads/thread-bus.js';

const { settings, endpoint, address, incarnation, abort } = workerData;
const { does, state } = settings;
const [waiting, stopped, late] = [1, 2, 3];
/** Five times as long as rows are waited for. */
const waitsMs = 5_000;

const bus = new MemoryBus(endpoint);
const words = new StepInterrupt(abort);
let heardOfEnd = false;
subscribeTo(bus, 'gone', ['*', '*'], () => {
  heardOfEnd = true;
});

/** As often as it is stopped for something else: the request itself may count as one that has come since. */
function wait() {
  Atomics.store(state, 0, waiting);
  Atomics.notify(state, 0);
  const end = performance.now() + waitsMs;
  while (!heardOfEnd && performance.now() < end) {
    words.acknowledge();
    bus.drain();
    words.stepBegins({ background: false, waiting: !heardOfEnd });
    while (!heardOfEnd && Atomics.load(abort, 0) === 0 && performance.now() < end) Atomics.wait(state, 0, waiting, 1);
    words.stepEnded();
  }
  Atomics.store(state, 0, heardOfEnd ? stopped : late);
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
