// A prompt of another instance that two attention workers pull: its next token has the bits of that instance, also
// after the workers were lost while the prompt waited.
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { root } from '../../../scripts/root.mjs';
import { Engine } from '../../../src/engine/engine.ts';
import { LinkedAttentionWorker } from '../../../src/engine/linked-attention-worker.ts';
import { freeModel, loadModel } from '../../../src/engine/load-model.ts';
import { groupedStep, type PlainSequence, plainPages } from '../../../src/engine/plain-step.ts';
import type { KvPoolSpec } from '../../../src/kernel/backend.ts';
import { loadNative } from '../../../src/kernel/native/addon.ts';
import { AttentionWorker } from '../../../src/kernel/native/attention-workers.ts';
import { NativeMessenger } from '../../../src/kernel/native/messenger.ts';
import { createNativeBackend } from '../../../src/kernel/native/native.ts';
import { LiveAttentionWorkers } from '../../../src/runtime/attention-workers/live-attention-workers.ts';
import { PulledPages } from '../../../src/runtime/attention-workers/pulled-pages.ts';
import { bitRows, blocksFor } from '../../engine/play.ts';
import { livePrompt } from '../threads/instances.ts';

const path = join(root, 'models', 'kvasir-tiny', 'kvasir-tiny-q8_0.gguf');
const [tokens, blocksMost] = [300, 40];
const prompt = livePrompt(1, tokens + 1);
const token = 'a secret of this test';

/** Attention workers that are linked as those of other processes are. */
class WorkersAtAddresses {
  readonly addresses: string[] = [];
  readonly #open = new Map<number, { readonly worker: AttentionWorker; readonly pool: number }>();
  readonly #backend = createNativeBackend({ threads: 1 });
  readonly #shard: KvPoolSpec;

  constructor(shard: KvPoolSpec) {
    this.#shard = shard;
    for (const at of [0, 1]) this.start(at);
  }

  /** Starts the worker, with empty pages: at its address if it had one. */
  start(at: number): void {
    const pool = this.#backend.createKvPool(this.#shard);
    const port = Number(this.addresses[at]?.split(':')[1] ?? 0);
    const worker = new AttentionWorker({ backend: this.#backend, pool, host: '127.0.0.1', port, token });
    this.#open.set(at, { worker, pool });
    this.addresses[at] = worker.address;
  }

  stop(at: number): void {
    const open = this.#open.get(at);
    if (open === undefined) return;
    this.#open.delete(at);
    open.worker.close();
    this.#backend.freeKvPool(open.pool);
  }

  close(): void {
    for (const at of [0, 1]) this.stop(at);
    this.#backend.close();
  }
}

/** A prefill instance, and a model worker with two attention workers. */
async function setup(where: 'threads' | 'addresses' = 'threads') {
  const [ordinary, own] = [createNativeBackend({ threads: 1 }), createNativeBackend({ threads: 1 })];
  const whole = loadModel({ model: path, backend: ordinary });
  const model = loadModel({ model: path, backend: own, attention: 'workers' });
  const { kv } = model;
  const layers = kv.groups.reduce((sum, group) => sum + group.layers, 0);
  const pages = blocksMost * layers;
  const limits = { tokensMax: 512, logitRowsMax: 8, kvBytes: pages * kv.pageBytes };
  const prefill = new Engine({ model: whole, backend: ordinary, ...limits });
  const engine = new Engine({ model, backend: own, ...limits, pagesAtWorkers: pages });
  const spec = { backend: own, kv, shards: 2, form: 'ranges', links: 1, threads: 1, pages } as const;
  const shape = { pages, type: kv.type, kvHeads: kv.kvHeads / 2, headDim: kv.headDim };
  const others = where === 'addresses' ? new WorkersAtAddresses(shape) : undefined;
  const linked = [0, 1].map((shard) =>
    others === undefined
      ? LinkedAttentionWorker.local({ ...spec, shard })
      : LinkedAttentionWorker.remote({ ...spec, addresses: others.addresses, index: shard, token, pulls: true }),
  );
  const opened = () => linked.map((worker) => (worker.isLost ? worker.reopen() : 'open'));
  await expect.poll(opened).toEqual(['open', 'open']);
  const live = new LiveAttentionWorkers(linked, () => {});
  const count = Math.ceil(tokens / 32) * layers;
  const staging = own.createKvPool({ pages: count, type: kv.type, kvHeads: kv.kvHeads, headDim: kv.headDim });
  const inner = new NativeMessenger(staging, () => {});
  const pulled = new PulledPages(inner, { handle: staging, pages: count }, linked, () => {});
  live.onReplaced = (worker) => pulled.onReplaced(worker);
  const sender = new NativeMessenger(prefill.pool, () => {});
  const stepOf = (sequences: readonly PlainSequence[]) => groupedStep(sequences, plainPages(blocksMost, kv.groups));
  return {
    ...{ prefill, engine, live, pulled, layers, count, stepOf, others },
    /** Sends the prompt from blocks 0, 1, ... there to blocks 20, 21, ... here. */
    send(): string {
      const buffer = pulled.open(Int32Array.from({ length: count }, (_, i) => 20 * layers + i));
      const descriptors = Int32Array.from({ length: 3 * count }, (_, i) =>
        i % 3 === 0 ? Math.floor(i / 3) % layers : Math.floor(i / 3),
      );
      sender.send(buffer, 0, descriptors, true);
      return buffer;
    },
    /** The same, until the prompt is received. */
    async sendAndReceive(): Promise<string> {
      const buffer = this.send();
      const received: string[] = [];
      const arrived = () => {
        received.push(...pulled.received());
        return received;
      };
      await expect.poll(arrived).toEqual([buffer]);
      return buffer;
    },
    run: (sequences: readonly PlainSequence[]) => {
      const outcome = engine.run({ ...stepOf(sequences), attentionWorkers: live.handles[0] }, new Int32Array(1));
      if (outcome.kind !== 'done') throw new Error('the step was aborted');
      return outcome.result.failedSequences.length === 0 ? bitRows(engine.readLogits(1), 1) : undefined;
    },
    close() {
      for (const worker of linked) worker.close();
      others?.close();
      sender.free();
      inner.free();
      engine.close();
      prefill.close();
      freeModel(model, own);
      freeModel(whole, ordinary);
      own.close();
      ordinary.close();
    },
  };
}

describe.skipIf(loadNative() === undefined)('a pulled prompt (needs the native kernels)', () => {
  it('continues with the bits of the instance that computed it, before and after the workers were lost', async () => {
    const all = await setup();
    const { prefill, pulled, live, stepOf, run } = all;
    const chunk = { tokens: prompt.slice(0, tokens), start: 0, blocks: blocksFor(tokens, 0), logits: 'last' } as const;
    const next = {
      tokens: prompt.slice(tokens),
      start: tokens,
      blocks: blocksFor(tokens + 1, 0),
      logits: 'last',
    } as const;
    const here = { ...next, blocks: blocksFor(tokens + 1, 20) };
    try {
      prefill.run(stepOf([chunk]), new Int32Array(1));
      const buffer = await all.sendAndReceive();
      prefill.run(stepOf([next]), new Int32Array(1));
      const expected = bitRows(prefill.readLogits(1), 1);
      expect(run([here])).toEqual(expected);
      // A step that writes a page twice breaks the links; new workers have empty pages.
      const twice = { tokens: [1], start: 0, blocks: [0], logits: 'last' } as const;
      expect(run([twice, twice])).toBeUndefined();
      expect(run([here])).toBeUndefined();
      // No step runs before a new worker has pulled the prompt again.
      const events: string[] = [];
      let us = 0;
      const polled = () => {
        us += 10_000;
        events.push(...live.poll(us).map((event) => `${event.kind} ${'worker' in event ? event.worker : ''}`));
        // A step notices the loss of the other one.
        if (events.length === 2) run([here]);
        return events.toSorted();
      };
      await expect
        .poll(polled)
        .toEqual(
          [0, 1].flatMap((worker) => [`attentionWorkerLost ${worker}`, `attentionWorkerReady ${worker}`]).sort(),
        );
      expect(run([here])).toEqual(expected);
      pulled.close(buffer);
      expect(pulled.freePages).toBe(all.count);
    } finally {
      all.close();
    }
  });

  it('continues so at workers of other processes, before and after one of them was lost', async () => {
    const all = await setup('addresses');
    const { prefill, pulled, live, stepOf, run, others } = all;
    const chunk = { tokens: prompt.slice(0, tokens), start: 0, blocks: blocksFor(tokens, 0), logits: 'last' } as const;
    const rest = { tokens: prompt.slice(tokens), start: tokens, logits: 'last' } as const;
    const here = { ...rest, blocks: blocksFor(tokens + 1, 20) };
    try {
      prefill.run(stepOf([chunk]), new Int32Array(1));
      const buffer = await all.sendAndReceive();
      prefill.run(stepOf([{ ...rest, blocks: blocksFor(tokens + 1, 0) }]), new Int32Array(1));
      const expected = bitRows(prefill.readLogits(1), 1);
      expect(run([here])).toEqual(expected);
      others?.stop(1);
      expect(run([here])).toBeUndefined();
      others?.start(1);
      const events: string[] = [];
      let nowUs = 0;
      // Attempts to connect are due.
      const poll = () => {
        nowUs += 1e7;
        return live.poll(nowUs).map(({ kind }) => kind);
      };
      await expect
        .poll(() => {
          events.push(...poll());
          return events;
        })
        .toEqual(['attentionWorkerLost', 'attentionWorkerReady']);
      expect(run([here])).toEqual(expected);
      pulled.close(buffer);
      // Pages of the next prompt cannot reach a worker that has ended: it is lost before any step.
      others?.stop(0);
      all.send();
      await expect
        .poll(() => {
          pulled.received();
          return poll();
        })
        .toEqual(['attentionWorkerLost']);
    } finally {
      all.close();
    }
  });

  it.each(['threads', 'addresses'] as const)(
    'at %s that is cancelled on its way frees its pages, and the next one has all of its own',
    async (where) => {
      const all = await setup(where);
      const { prefill, pulled, stepOf, run } = all;
      const chunk = {
        tokens: prompt.slice(0, tokens),
        start: 0,
        blocks: blocksFor(tokens, 0),
        logits: 'last',
      } as const;
      const next = {
        tokens: prompt.slice(tokens),
        start: tokens,
        blocks: blocksFor(tokens + 1, 0),
        logits: 'last',
      } as const;
      try {
        prefill.run(stepOf([chunk]), new Int32Array(1));
        for (let round = 0; round < 10; round++) {
          const cancelled = all.send();
          if (round % 2 === 0) await new Promise((resolve) => setTimeout(resolve, round / 4));
          pulled.received();
          pulled.close(cancelled);
          expect(pulled.freePages).toBe(all.count);
        }
        await all.sendAndReceive();
        prefill.run(stepOf([next]), new Int32Array(1));
        expect(run([{ ...next, blocks: blocksFor(tokens + 1, 20) }])).toEqual(bitRows(prefill.readLogits(1), 1));
      } finally {
        all.close();
      }
    },
  );
});
