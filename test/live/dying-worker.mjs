// Entry of an instance's thread that serves as it should until it is sent a request whose id begins with `deadly`, starts
// `poison`, or has said a few tokens of `last straw`. Of `struck by WORD` it dies when it has told another instance that word.
import { MessagePort, parentPort } from 'node:worker_threads';

/** In a cluster the gateway's name stands before the request's. */
const isDeadly = (id) => /^(.*\/)?deadly/.test(id);
parentPort?.on('message', (message) => {
  if (message.kind === 'submit' && isDeadly(message.request.id)) process.exit(5);
});

const tell = MessagePort.prototype.postMessage;
MessagePort.prototype.postMessage = function (wire, transfer) {
  tell.call(this, wire, transfer);
  const { id, kind } = wire.message ?? wire;
  if (id === `struck by ${kind}`) process.exit(5);
};

let said = 0;
const post = parentPort?.postMessage.bind(parentPort);
if (parentPort !== null) {
  parentPort.postMessage = (message, transfer) => {
    // The loop takes what came while it was at work without an event.
    if (message.events?.some(([id]) => isDeadly(id))) process.exit(5);
    post(message, transfer);
    if (message.events?.some(([id, { kind }]) => kind === 'started' && id === 'poison')) process.exit(5);
    // Whoever runs the last layers has never been the first.
    if (message.prefilled?.includes('struck by the end') && !message.snapshot.stageChunks?.[0]) process.exit(5);
    for (const [id, event] of message.events ?? [])
      if (id === 'last straw' && event.kind === 'tokens' && ++said === 5) process.exit(5);
  };
}
await import('../../dist/cli/instance-worker.js');
