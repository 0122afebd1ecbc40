// Entry of an instance's thread that exits when it receives a request with an id that starts with `deadly`, starts the
// request `poison`, has sent five token events of `last straw`, or has sent the message KIND of a request `struck by KIND`.
import { deserialize } from 'node:v8';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';

/** In a cluster the gateway's name precedes the request's id. */
const isDeadly = (id) => /^(.*\/)?deadly/.test(id);

const { publish, subscribe } = MemoryBus.prototype;
MemoryBus.prototype.subscribe = function (pattern, handler) {
  return subscribe.call(this, pattern, (payload, subject) => {
    const message = deserialize(payload);
    if (message?.kind === 'submit' && isDeadly(message.request.id)) process.exit(5);
    handler(payload, subject);
  });
};

MemoryBus.prototype.publish = function (subject, payload) {
  publish.call(this, subject, payload);
  const message = deserialize(payload);
  if (subject.startsWith('output.')) onOutput(message);
  else {
    const { id, kind } = message?.message ?? message ?? {};
    if (id === `struck by ${kind}`) process.exit(5);
  }
};

let tokenEvents = 0;
function onOutput(message) {
  if (message.events?.some(([id, { kind }]) => kind === 'started' && id === 'poison')) process.exit(5);
  // The last member of the group, which is never the first.
  if (message.prefilled?.includes('struck by the end') && !message.snapshot.pipelineChunks?.[0]) process.exit(5);
  for (const [id, event] of message.events ?? [])
    if (id === 'last straw' && event.kind === 'tokens' && ++tokenEvents === 5) process.exit(5);
}
await import('../../../dist/cli/serve/instance-worker.js');
