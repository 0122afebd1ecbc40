// Steps over blocks in transit: arrived blocks give the bits of present ones, and missing blocks fail only their own
// sequence.
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { loadModel } from '../../src/engine/load-model.ts';
import { groupedStep, type PlainSequence, plainPages } from '../../src/engine/plain-step.ts';
import { NativeMessenger } from '../../src/kernel/native/messenger.ts';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import { NativeArrivals } from '../../src/kernel/native/page-arrivals.ts';
import { type ArrivingKeys, pageTokens, type Step } from '../../src/util/step.ts';

const path = fileURLToPath(new URL('../../models/kvasir-tiny/kvasir-tiny-q8_0.gguf', import.meta.url));
const blocksMax = 24;

interface Arriving {
  /** Blocks in transit, and the rows behind them. */
  readonly blocks: number;
  readonly rows: number;
  /** `late`: some pages of a layer do not arrive; `closed`: the transfer ends without pages; `gone`: its arrivals are freed. */
  readonly fate: 'present' | 'arrives' | 'late' | 'closed' | 'gone';
  readonly layer: number;
}

const sequences: fc.Arbitrary<readonly Arriving[]> = fc.array(
  fc.record({
    blocks: fc.integer({ min: 1, max: 4 }),
    rows: fc.integer({ min: 1, max: 9 }),
    fate: fc.constantFrom<Arriving['fate']>('present', 'arrives', 'arrives', 'late', 'closed', 'gone'),
    layer: fc.nat(),
  }),
  { minLength: 1, maxLength: 4 },
);

describe.skipIf(loadNative() === undefined)('a step over blocks in transit', () => {
  const backend = createNativeBackend({ threads: 2 });
  const model = loadModel({ model: path, backend, context: 256 });
  const [engine, other] = [0, 1].map(
    () => new Engine({ model, backend, tokensMax: 256, logitRowsMax: 8, kvBytes: blocksMax * 2 ** 18 }),
  ) as [Engine, Engine];
  const [messenger, receiver] = [other, engine].map(({ pool }) => new NativeMessenger(pool, () => {}));
  const { groups } = model.kv;
  const layers = engine.layers.length;
  const pages = plainPages(blocksMax, groups);
  const noAbort = new Int32Array(1);
  const tokenOf = (sequence: number, position: number) => 3 + ((sequence * 131 + position * 7) % 200);

  /** Each sequence has 6 blocks of its own. */
  function rowsOf(sequence: number, from: number, rows: number): PlainSequence {
    const tokens = Array.from({ length: rows }, (_, i) => tokenOf(sequence, from + i));
    const blocks = Array.from({ length: Math.ceil((from + rows) / pageTokens) }, (_, i) => 6 * sequence + i);
    return { tokens, start: from, blocks, logits: 'last' };
  }

  function run(target: Engine, step: Step, arriving?: readonly ArrivingKeys[]) {
    const outcome = target.run({ ...step, arriving }, noAbort);
    if (outcome.kind !== 'done') throw new Error('aborted');
    return outcome.result;
  }

  /** Sends the sequence's blocks to the other engine's pages, as its fate requires. */
  function transfer(sequence: number, { blocks, fate, layer }: Arriving) {
    const to = pages[0].pageTable.slice(6 * sequence * layers, (6 * sequence + blocks) * layers);
    const buffer = receiver.open(to, layers);
    const arrivals = receiver.arrivals(buffer, blocks) ?? 0;
    const descriptors: number[] = [];
    for (let l = 0; l < layers; l++)
      for (let block = 0; block < blocks; block++) {
        const slot = block * layers + l;
        if (fate !== 'late' || l !== layer % layers) descriptors.push(l, to[slot], slot);
      }
    if (fate === 'closed') messenger.send(buffer, 0, Int32Array.of(), true);
    if (fate === 'gone') receiver.close(buffer);
    if (fate === 'arrives' || fate === 'late')
      messenger.send(buffer, 0, Int32Array.from(descriptors), fate === 'arrives');
    const free = () => {
      if (fate !== 'gone') receiver.close(buffer);
      messenger.stop(buffer);
    };
    // Long enough for pages that arrive, short for those that do not.
    const withinMs = fate === 'late' ? 5 : 60_000;
    return { keys: { sequence, arrivals, withinMs }, free };
  }

  it('equals a step over present blocks bit for bit, and fails only sequences with missing blocks', () => {
    fc.assert(
      fc.property(sequences, (all) => {
        const prompt = all.map(({ blocks }, s) => ({ ...rowsOf(s, 0, blocks * pageTokens), logits: 'none' as const }));
        const rows = all.map(({ blocks, rows }, s) => rowsOf(s, blocks * pageTokens, rows));
        const step = groupedStep(rows, pages);
        for (const sequence of prompt) run(other, groupedStep([sequence], pages));
        const expected = run(other, step);
        for (let page = 0; page < blocksMax * layers; page++)
          engine.writePage(page, engine.readPage(page).fill(Number.NaN));
        const present = prompt.filter((_, s) => all[s]?.fate === 'present');
        for (const sequence of present) run(engine, groupedStep([sequence], pages));
        const transfers = all.flatMap((arriving, s) => (arriving.fate === 'present' ? [] : [transfer(s, arriving)]));
        const result = run(
          engine,
          step,
          transfers.map(({ keys }) => keys),
        );
        for (const { free } of transfers) free();
        const lost = all.flatMap(({ fate }, s) => (fate === 'present' || fate === 'arrives' ? [] : [s]));
        expect([...result.failedSequences]).toEqual(lost);
        for (const s of all.keys()) {
          if (lost.includes(s)) continue;
          expect(result.tokens[s]).toBe(expected.tokens[s]);
          expect(result.logprobs[s]).toBe(expected.logprobs[s]);
          expect(result.failed[s]).toBe(0);
        }
      }),
      { numRuns: 25 },
    );
    receiver.received();
  });

  it('is aborted while it waits', async () => {
    const abort = new Int32Array(new SharedArrayBuffer(4));
    const code = `const { workerData } = require('node:worker_threads'); Atomics.store(workerData, 0, 1);`;
    const worker = new Worker(code, { eval: true, workerData: abort });
    const arrivals = new NativeArrivals(layers, 1);
    const step = groupedStep([rowsOf(0, pageTokens, 3)], pages);
    const keys = { sequence: 0, arrivals: arrivals.handle, withinMs: 600_000 };
    // On a busy machine the wait may time out before the abort: the step runs again.
    for (let kind = ''; kind !== 'aborted'; ) kind = engine.run({ ...step, arriving: [keys] }, abort).kind;
    arrivals.free();
    await new Promise((resolve) => worker.on('exit', resolve));
  });

  it('refuses arrivals of a sequence that does not exist', () => {
    const step = groupedStep([rowsOf(0, 0, 3)], pages);
    expect(() => run(engine, step, [{ sequence: 1, arrivals: 1, withinMs: 1 }])).toThrow('no such sequence');
  });
});
