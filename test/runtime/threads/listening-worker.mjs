// A thread that reads the bus, publishes and waits until it is interrupted, like steps that wait for activations; it counts received and missed notifications.
import { workerData } from 'node:worker_threads';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';
import { StepInterrupt } from '../../../dist/runtime/threads/step-interrupt.js';

const { endpoint, polled, rounds, counts } = workerData;
const [stop, sent, received, missed] = [0, 0, 1, 2];
const bus = new MemoryBus(endpoint);
const interrupt = new StepInterrupt(polled);
bus.subscribe('interrupt', () => {
  Atomics.add(counts, received, 1);
  Atomics.notify(counts, received);
});
bus.publish('ready', new Uint8Array());

/** Returns when it is stopped; false: an interrupt was sent and did not stop it. */
function wait() {
  for (;;) {
    const all = Atomics.load(counts, sent);
    if (Atomics.load(polled, stop) !== 0) return true;
    if (all > Atomics.load(counts, received)) return false;
  }
}

setImmediate(() => {
  while (Atomics.load(counts, received) < rounds) {
    interrupt.acknowledge();
    bus.drain();
    bus.publish('output', new Uint8Array(1000));
    interrupt.stepBegins({ background: false, waiting: true });
    if (Atomics.load(counts, received) < rounds && !wait()) Atomics.add(counts, missed, 1);
    interrupt.stepEnded();
  }
  void bus.close();
});
