// Entry of a thread that answers each request with one token, except that its first start hangs at the first request: it opens a FIFO in a native call, until a writer opens it too.
import { readFileSync } from 'node:fs';
import { workerData } from 'node:worker_threads';
import { MemoryBus } from '../../../dist/runtime/bus/memory-bus.js';
import { StepProgress } from '../../../dist/runtime/threads/step-progress.js';
import { publishTo, subscribeTo } from '../../../dist/runtime/threads/thread-bus.js';

const { settings, endpoint, address, incarnation, abort } = workerData;
const { fifo, state } = settings;

const bus = new MemoryBus(endpoint);
const progress = new StepProgress(abort);
const publish = (message) => publishTo(bus, 'output', [address, incarnation], message);
const nothing = { prefilled: [], released: [], steps: [], pins: [], kvEvents: [] };

subscribeTo(bus, 'command', [address, incarnation], (command) => {
  if (command.kind === 'close') void bus.close();
  if (command.kind !== 'submit') return;
  progress.work(() => {
    if (fifo !== undefined && incarnation === 1) {
      progress.stepBegins(100_000);
      Atomics.store(state, 0, 1);
      readFileSync(fifo);
    }
    const { id } = command.request;
    const tokens = { kind: 'tokens', tokens: Int32Array.of(7), logprobs: undefined };
    const kinds = [{ kind: 'started', cachedTokens: 0 }, tokens, { kind: 'finished', reason: 'length' }];
    publish({ kind: 'events', ...nothing, events: kinds.map((event) => [id, event]) });
  });
});
const pages = { total: 0, used: 0, cached: 0, free: 0 };
const root = { modelFingerprint: '', weightForm: 'native', inputForm: 'bf16', kvType: 'bf16', rope: '' };
const tokens = { promptTokens: 0, cachedTokens: 0, computedPromptTokens: 0, generatedTokens: 0 };
const totals = { preemptions: 0, steps: 0, stepMsTotal: 0, evictedBlocks: 0, usedPageSeconds: 0 };
const snapshot = { ready: true, waiting: 0, running: 0, pages, ...tokens, ...totals };
publish({ kind: 'ready', description: { capacityTokens: 1000, contextTokens: 1000 }, snapshot, root });
