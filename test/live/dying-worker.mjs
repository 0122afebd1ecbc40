// Entry of an instance's thread that serves as it should until it is sent a request whose id begins with `deadly`.
import { parentPort } from 'node:worker_threads';

parentPort?.on('message', (message) => {
  if (message.kind === 'submit' && message.request.id.startsWith('deadly')) process.exit(5);
});
await import('../../dist/cli/instance-worker.js');
