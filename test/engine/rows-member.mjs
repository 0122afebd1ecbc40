// A worker thread with an engine that runs the last layers of chunks. It receives a chunk, announces the receive pages
// of its activations, and starts the step immediately.
import { parentPort, workerData } from 'node:worker_threads';
import { Engine } from '../../dist/engine/engine.js';
import { loadModel } from '../../dist/engine/load-model.js';
import { groupedStep, plainPages } from '../../dist/engine/plain-step.js';
import { NativeMessenger } from '../../dist/kernel/native/messenger.js';
import { createNativeBackend } from '../../dist/kernel/native/native.js';

const { path, cut, limits, rowPages, abort } = workerData;
const backend = createNativeBackend({ threads: 1 });
const model = loadModel({ model: path, backend, context: limits.context });
const engine = new Engine({ ...{ model, backend }, ...limits });
const slice = engine.pipelineStage({ from: cut, to: engine.layers.length });
const pool = backend.createKvPool(rowPages);
const messenger = new NativeMessenger(pool, () => {});
const pages = plainPages(limits.blocks, model.kv.groups);
const rowPageIds = Int32Array.from({ length: rowPages.pages }, (_, i) => rowPages.pages - 1 - i);
let buffer;

parentPort?.on('message', ({ sequence, withinMs }) => {
  buffer ??= messenger.open(rowPageIds, 1);
  parentPort?.postMessage(buffer);
  const needed = Math.ceil((sequence.tokens.length * slice.columns) / limits.pageValues);
  const arrivals = messenger.arrivals(buffer, needed);
  const rowsIn = { pool, pages: rowPageIds.subarray(0, needed), arrivals, withinMs };
  let outcome;
  // On a busy machine the rows may arrive after the step's timeout: the step runs again.
  do outcome = slice.run({ ...groupedStep([sequence], pages), rowsIn }, abort);
  while (withinMs > 1000 && outcome.kind === 'done' && outcome.result.failedSequences.length > 0);
  parentPort?.postMessage(outcome);
  if (outcome.kind === 'aborted' || outcome.result.failedSequences.length > 0) return;
  messenger.close(buffer);
  buffer = undefined;
});
