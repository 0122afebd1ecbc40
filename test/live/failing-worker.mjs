// Entry of a thread that fails as its settings say: before it is ready, or at its first request.
import { parentPort, workerData } from 'node:worker_threads';

const { failure } = workerData.settings;
if (failure === 'unable') parentPort.postMessage({ kind: 'unable', message: 'Cannot read model: no such file' });
else if (failure === 'early exit') process.exit(3);
else {
  parentPort.postMessage({ kind: 'ready', description: { capacityTokens: 1000 }, snapshot: { ready: true } });
  parentPort.on('message', () => process.exit(4));
}
