// A thread that reads the bus, publishes and waits until it is interrupted, like steps that wait for activations; it counts missed notifications.
import { workerData } from 'node:worker_threads';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';
import { StepInterrupt } from '../../../dist/runtime/threads/step-interrupt.js';

const { endpoint, polled, rounds, counts } = workerData;
const [stop, come, heard, missed] = [0, 0, 1, 2];
const bus = new MemoryBus(endpoint);
const words = new StepInterrupt(polled);
bus.subscribe('come', () => {
  Atomics.add(counts, heard, 1);
  Atomics.notify(counts, heard);
});
bus.publish('ready', new Uint8Array());

/** Returns when it is stopped; false: an interrupt was sent and did not stop it. */
function waits() {
  for (;;) {
    const all = Atomics.load(counts, come);
    if (Atomics.load(polled, stop) !== 0) return true;
    if (all > Atomics.load(counts, heard)) return false;
  }
}

setImmediate(() => {
  while (Atomics.load(counts, heard) < rounds) {
    words.acknowledge();
    bus.drain();
    bus.publish('said', new Uint8Array(1000));
    words.stepBegins({ background: false, waiting: true });
    if (Atomics.load(counts, heard) < rounds && !waits()) Atomics.add(counts, missed, 1);
    words.stepEnded();
  }
  void bus.close();
});
