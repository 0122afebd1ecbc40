// Entry of a thread that fails as its settings say: before it is ready, or at its first request.
import { workerData } from 'node:worker_threads';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';
import { publishTo, subscribeTo } from '../../../dist/runtime/threads/thread-bus.js';

const { settings, endpoint, address, incarnation } = workerData;
const bus = new MemoryBus(endpoint);
const report = (message) => publishTo(bus, 'output', [address, incarnation], message);

if (settings.failure === 'startFailed') report({ kind: 'startFailed', message: 'Cannot read model: no such file' });
else if (settings.failure === 'early exit') process.exit(3);
else {
  const pages = { total: 0, used: 0, cached: 0, free: 0 };
  const root = { modelFingerprint: '', weightForm: 'native', inputForm: 'bf16', kvType: 'bf16', rope: '' };
  const snapshot = { ready: true, waiting: 0, running: 0, pages };
  subscribeTo(bus, 'command', [address, incarnation], () => process.exit(4));
  report({ kind: 'ready', description: { capacityTokens: 1000 }, snapshot, root });
}
