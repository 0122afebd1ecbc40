// Entry of a thread that fails as its settings say: before it is ready, or at its first request.
import { parentPort, workerData } from 'node:worker_threads';

const { failure } = workerData.settings;
if (failure === 'unable') parentPort.postMessage({ kind: 'unable', message: 'Cannot read model: no such file' });
else if (failure === 'early exit') process.exit(3);
else {
  const pages = { total: 0, used: 0, cached: 0, free: 0 };
  const root = { modelFingerprint: '', weightForm: 'native', inputForm: 'bf16', kvType: 'bf16', rope: '' };
  const snapshot = { ready: true, waiting: 0, running: 0, pages };
  parentPort.postMessage({ kind: 'ready', description: { capacityTokens: 1000 }, snapshot, root });
  parentPort.on('message', () => process.exit(4));
}
