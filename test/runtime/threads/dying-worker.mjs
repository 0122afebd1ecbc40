// Entry of an instance's thread that serves as it should until it is sent a request whose id begins with `deadly`, starts
// `poison`, or has said a few tokens of `last straw`. Of `struck by WORD` it dies when it has told another instance that word.
import { deserialize } from 'node:v8';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';

/** In a cluster the gateway's name stands before the request's. */
const isDeadly = (id) => /^(.*\/)?deadly/.test(id);

const { publish, subscribe } = MemoryBus.prototype;
MemoryBus.prototype.subscribe = function (pattern, hear) {
  return subscribe.call(this, pattern, (payload, subject) => {
    const message = deserialize(payload);
    if (message?.kind === 'submit' && isDeadly(message.request.id)) process.exit(5);
    hear(payload, subject);
  });
};

MemoryBus.prototype.publish = function (subject, payload) {
  publish.call(this, subject, payload);
  const said = deserialize(payload);
  if (subject.startsWith('output.')) onSaid(said);
  else {
    const { id, kind } = said?.message ?? said ?? {};
    if (id === `struck by ${kind}`) process.exit(5);
  }
};

let said = 0;
function onSaid(message) {
  if (message.events?.some(([id, { kind }]) => kind === 'started' && id === 'poison')) process.exit(5);
  // The member with the last layers is never the first.
  if (message.prefilled?.includes('struck by the end') && !message.snapshot.pipelineChunks?.[0]) process.exit(5);
  for (const [id, event] of message.events ?? [])
    if (id === 'last straw' && event.kind === 'tokens' && ++said === 5) process.exit(5);
}
await import('../../../dist/cli/serve/instance-worker.js');
