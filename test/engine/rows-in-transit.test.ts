// A pipeline member starts its layers before the activations of the previous layers arrive. Its results have the bits
// of the whole model, also after aborts, reruns and late rows.
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { loadModel } from '../../src/engine/load-model.ts';
import { groupedStep, type PlainSequence, plainPages } from '../../src/engine/plain-step.ts';
import type { StepOutcome } from '../../src/kernel/backend.ts';
import { NativeMessenger } from '../../src/kernel/native/messenger.ts';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import { pageTokens } from '../../src/util/step.ts';

const path = fileURLToPath(new URL('../../models/kvasir-tiny/kvasir-tiny-q8_0.gguf', import.meta.url));
const context = 256;
const cut = 2;
const promptBlocks = context / pageTokens;
const blocks = 2 * promptBlocks;
/** An odd size, so that rows cross page borders. */
const rowPages = { pages: 40, kvHeads: 1, headDim: 17, type: 'f32' } as const;
const pageValues = 2 * pageTokens * rowPages.headDim;
const limits = { context, blocks, pageValues, tokensMax: context, logitRowsMax: 4, kvBytes: blocks * 2 ** 18 };
const runs = new Int32Array(1);
const stops = Int32Array.of(1);
const tokenOf = (prompt: number, position: number) => 3 + ((prompt * 131 + position * 7) % 200);

/** Tokens `from..to` of a prompt of 200 tokens, with logits of the last one. */
function chunk(prompt: number, from: number, to: number): PlainSequence {
  const tokens = Array.from({ length: to - from }, (_, i) => tokenOf(prompt, from + i));
  const own = Array.from({ length: Math.ceil(to / pageTokens) }, (_, i) => promptBlocks * prompt + i);
  return { tokens, start: from, blocks: own, logits: 'last' };
}

describe.skipIf(loadNative() === undefined)('activations in transit', () => {
  const backend = createNativeBackend({ threads: 1 });
  const model = loadModel({ model: path, backend, context });
  const [whole, engine] = [0, 1].map(() => new Engine({ ...{ model, backend }, ...limits })) as [Engine, Engine];
  const slice = engine.pipelineStage({ from: 0, to: cut });
  const pool = backend.createKvPool(rowPages);
  const messenger = new NativeMessenger(pool, () => {});
  const pages = plainPages(blocks, model.kv.groups);
  const abort = new Int32Array(new SharedArrayBuffer(12));
  const rowPageIds = Int32Array.from({ length: rowPages.pages }, (_, i) => i);
  let member: Worker;
  const messages: unknown[] = [];
  let wake = () => {};

  beforeAll(() => {
    const entry = new URL('./rows-member.mjs', import.meta.url);
    member = new Worker(entry, { workerData: { path, cut, limits, rowPages, abort } });
    member.on('message', (message) => {
      messages.push(message);
      wake();
    });
  });
  afterAll(() => member.terminate());

  async function next<T>(): Promise<T> {
    while (messages.length === 0)
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    return messages.shift() as T;
  }

  /** Starts the member's step; returns the receive buffer of its rows. */
  function begin(sequence: PlainSequence, withinMs = 600_000): Promise<string> {
    member.postMessage({ sequence, withinMs });
    return next<string>();
  }

  /** Resolves when the member waits for rows. */
  async function waiting(): Promise<void> {
    while (Atomics.load(abort, 2) === 0) await new Promise((resolve) => setImmediate(resolve));
  }

  /** Queues the rows of the next step for sending. */
  function queueRows(buffer: string, { tokens }: PlainSequence): void {
    const count = Math.ceil((tokens.length * slice.columns) / pageValues);
    const descriptors = Int32Array.from({ length: 3 * count }, (_, i) =>
      i % 3 === 0 ? 0 : rowPageIds[(i - (i % 3)) / 3],
    );
    messenger.send(buffer, messenger.nextPoolStep, descriptors, true);
  }

  /** Runs the previous layers. */
  const run = (sequence: PlainSequence, word = runs) =>
    slice.run({ ...groupedStep([sequence], pages), rowsOut: { pool, pages: rowPageIds } }, word).kind;

  function expected(sequence: PlainSequence): StepOutcome {
    return whole.run(groupedStep([sequence], pages), runs);
  }

  it('delay the step until they arrive, chunk after chunk', async () => {
    for (const [from, to] of [
      [0, 75],
      [75, 107],
      [107, 200],
    ] as const) {
      const sequence = chunk(0, from, to);
      const buffer = await begin(sequence);
      await waiting();
      queueRows(buffer, sequence);
      expect(run(sequence)).toBe('done');
      expect(await next()).toEqual(expected(sequence));
      expect(messenger.pending(buffer)).toBe(0);
    }
  });

  it('arrive after a rerun of the aborted step that computes them, despite other steps in between', async () => {
    const sequence = chunk(1, 0, 75);
    const buffer = await begin(sequence);
    await waiting();
    queueRows(buffer, sequence);
    expect(run(sequence, stops)).toBe('aborted');
    expect(messenger.pending(buffer)).toBeGreaterThan(0);
    messenger.stop(buffer);
    expect(run(chunk(0, 107, 200))).toBe('done');
    expect([messenger.pending(buffer), messages]).toEqual([0, []]);
    queueRows(buffer, sequence);
    expect(run(sequence)).toBe('done');
    expect(await next()).toEqual(expected(sequence));
  });

  it('do not delay an aborted step, which can run again', async () => {
    const sequence = chunk(1, 75, 150);
    await begin(sequence);
    await waiting();
    Atomics.store(abort, 0, 1);
    expect(await next()).toEqual({ kind: 'aborted' });
    Atomics.store(abort, 0, 0);
    const buffer = await begin(sequence);
    queueRows(buffer, sequence);
    expect(run(sequence)).toBe('done');
    expect(await next()).toEqual(expected(sequence));
  });

  it('fail the sequence after the timeout; it runs once they have arrived', async () => {
    const sequence = chunk(1, 150, 200);
    const buffer = await begin(sequence, 5);
    const late = await next<StepOutcome>();
    expect(late.kind === 'done' && [...late.result.failedSequences]).toEqual([0]);
    queueRows(buffer, sequence);
    expect(run(sequence)).toBe('done');
    await begin(sequence);
    expect(await next()).toEqual(expected(sequence));
  });

  it('require enough pages that exist', () => {
    const step = groupedStep([chunk(0, 0, 75)], pages);
    const tooFew = { pool, pages: rowPageIds.subarray(0, 1) };
    expect(() => slice.run({ ...step, rowsOut: tooFew }, runs)).toThrow('rowsOut have pages of');
    expect(() => slice.run({ ...step, rowsOut: { pool, pages: rowPageIds.map((page) => page + 1) } }, runs)).toThrow(
      'rowsOut have no such page: 40',
    );
    expect(() => whole.run({ ...step, rowsOut: { pool, pages: rowPageIds } }, runs)).toThrow(
      'the program has no such rows',
    );
  });
});
