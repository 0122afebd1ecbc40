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
const room = Int32Array.from({ length: rowPages.pages }, (_, i) => rowPages.pages - 1 - i);
let landing;

parentPort?.on('message', ({ sequence, withinMs }) => {
  landing ??= messenger.open(room, 1);
  parentPort?.postMessage(landing);
  const needed = Math.ceil((sequence.tokens.length * slice.columns) / limits.pageValues);
  const arrivals = messenger.arrivals(landing, needed);
  const rowsIn = { pool, pages: room.subarray(0, needed), arrivals, withinMs };
  let outcome;
  // Where the other thread has much else to do, nothing comes for as long as a step waits: then it is tried again.
  do outcome = slice.run({ ...groupedStep([sequence], pages), rowsIn }, abort);
  while (withinMs > 1000 && outcome.kind === 'done' && outcome.result.unanswered.length > 0);
  parentPort?.postMessage(outcome);
  if (outcome.kind === 'aborted' || outcome.result.unanswered.length > 0) return;
  messenger.close(landing);
  landing = undefined;
});
