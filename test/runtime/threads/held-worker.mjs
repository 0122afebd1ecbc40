// Entry of a thread that exits at its first request, or reads no message for a while, as in a long step. It records whether it restarted before the other thread received its end.
import { workerData } from 'node:worker_threads';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';
import { publishTo, subscribeTo } from '../../../dist/runtime/threads/thread-bus.js';

const { settings, endpoint, address, incarnation } = workerData;
const { dies, flags } = settings;
const [endReceived, startedEarly] = [0, 1];
/** Twice the delay before the restart. */
const heldMs = 1_000;

const bus = new MemoryBus(endpoint);
if (incarnation > 1 && Atomics.load(flags, endReceived) === 0) Atomics.store(flags, startedEarly, 1);
subscribeTo(bus, 'gone', ['*', '*'], () => Atomics.store(flags, endReceived, 1));
subscribeTo(bus, 'command', [address, incarnation], ({ kind }) => {
  if (kind === 'close') void bus.close();
  if (kind !== 'submit') return;
  if (dies && incarnation === 1) process.exit(4);
  Atomics.wait(flags, endReceived, 0, heldMs);
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
