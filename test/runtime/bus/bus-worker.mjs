// A thread with an endpoint of a bus, which carries out calls of the test's thread and responds to each at once; `threaded-bus.ts` is the other side.
import { parentPort, workerData } from 'node:worker_threads';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';

const { endpoint, responseCount } = workerData;
const bus = new MemoryBus(endpoint);
const stops = new Map();

const calls = {
  publish: (subject, payload) => bus.publish(subject, payload),
  subscribe: (subject, number) => {
    stops.set(
      number,
      bus.subscribe(subject, (payload, on) => parentPort.postMessage({ kind: 'delivered', number, payload, on })),
    );
  },
  stop: (number) => stops.get(number)(),
  watchConnection: (number) => {
    stops.set(
      number,
      bus.watchConnection((up) => parentPort.postMessage({ kind: 'connection', number, up })),
    );
  },
  record: (bucket, how, ...args) => bus[bucket][how](...args),
  flush: () => bus.flush(),
  close: () => bus.close(),
  exit: () => process.exit(3),
};

/** The synchronous response, for which the calling thread waits. */
function respond(message) {
  workerData.responses.postMessage(message);
  Atomics.add(responseCount, 0, 1);
  Atomics.notify(responseCount, 0);
}

parentPort.on('message', ({ number, name, args }) => {
  try {
    const result = calls[name](...args);
    if (!(result instanceof Promise)) respond({});
    else {
      respond({});
      result.then(
        (value) => parentPort.postMessage({ kind: 'done', number, value }),
        (error) => parentPort.postMessage({ kind: 'failed', number, message: error.message }),
      );
    }
  } catch (error) {
    respond({ message: error.message });
  }
});
