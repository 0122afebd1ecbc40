// A process with a model worker that runs steps over attention workers of its parent, and its last step again and again
// until it is killed.
import { Engine } from '../../../dist/engine/engine.js';
import { loadModel } from '../../../dist/engine/load-model.js';
import { groupedStep, plainPages } from '../../../dist/engine/plain-step.js';
import { WorkerLink } from '../../../dist/kernel/native/attention-workers.js';
import { createNativeBackend } from '../../../dist/kernel/native/native.js';

const { path, isa, ports, token, shard, pages, blocks, sequences } = JSON.parse(process.argv[2] ?? '');
const backend = createNativeBackend({ threads: 1, isa });
const model = loadModel({ model: path, backend, weights: 'bf16', inputs: 'bf16', attention: 'workers' });
const kvBytes = pages * model.kv.pageBytes;
const engine = new Engine({ model, backend, tokensMax: 300, logitRowsMax: 1, kvBytes, pagesAtWorkers: pages });
const handles = ports.map(
  (port) => new WorkerLink({ backend, shard, address: `127.0.0.1:${port}`, token, transport: 'tcp' }).handle,
);

function run(sequence) {
  const step = groupedStep([sequence], plainPages(blocks, model.kv.groups));
  const outcome = engine.run({ ...step, attentionWorkers: Int32Array.from(handles) }, new Int32Array(1));
  if (outcome.kind !== 'done' || outcome.result.failedSequences.length > 0)
    throw new Error('a step has failed sequences');
}

for (const sequence of sequences) run(sequence);
process.send?.('computed');
for (;;) run(sequences.at(-1));
