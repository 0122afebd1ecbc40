// A thread with an end of a bus, which does what the test's thread tells it and answers at once: `threaded-bus.ts` is the other side.
import { parentPort, workerData } from 'node:worker_threads';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';

const { seat, answered } = workerData;
const bus = new MemoryBus(seat);
const stops = new Map();

const calls = {
  publish: (subject, payload) => bus.publish(subject, payload),
  subscribe: (subject, number) => {
    stops.set(
      number,
      bus.subscribe(subject, (payload, on) => parentPort.postMessage({ kind: 'heard', number, payload, on })),
    );
  },
  stop: (number) => stops.get(number)(),
  watch: (number) => {
    stops.set(
      number,
      bus.watch((up) => parentPort.postMessage({ kind: 'watched', number, up })),
    );
  },
  ask: (bucket, how, ...args) => bus[bucket][how](...args),
  flush: () => bus.flush(),
  close: () => bus.close(),
  exit: () => process.exit(3),
};

/** What could be said at once: the one who asked waits for it. */
function answer(message) {
  workerData.answers.postMessage(message);
  Atomics.add(answered, 0, 1);
  Atomics.notify(answered, 0);
}

parentPort.on('message', ({ number, name, args }) => {
  try {
    const result = calls[name](...args);
    if (!(result instanceof Promise)) answer({});
    else {
      answer({});
      result.then(
        (value) => parentPort.postMessage({ kind: 'done', number, value }),
        (error) => parentPort.postMessage({ kind: 'failed', number, message: error.message }),
      );
    }
  } catch (error) {
    answer({ message: error.message });
  }
});
