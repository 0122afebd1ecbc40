// A faulty network between a model worker and an attention worker: a frame that is lost, repeated, late, spoilt or of an
// earlier step gives either the bits of one instance, or a lost worker. Then all is computed again, with the same bits.
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { Worker as Thread } from 'node:worker_threads';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { WorkerLink } from '../../../src/kernel/native/attention-workers.ts';
import { Prng } from '../../../src/util/prng.ts';
import { nativeBackends } from '../backends.ts';
import { ModelFolder, oddSpec } from '../models.ts';
import { deadlineMs, ModelWorker, OwnWorker, schedule } from './model-worker.ts';

const kinds = ['step', 'query', 'keys', 'result'] as const;
const anomalies = ['lost', 'twice', 'late', 'overtaken', 'orphan', 'truncated', 'corrupt', 'cut'] as const;
/** `too late`: after the deadline of the link. */
type Anomaly = (typeof anomalies)[number] | 'too late';

/** Frames of a step. */
const framesOf = { step: 1, query: oddSpec.layers, keys: oddSpec.layers, result: oddSpec.layers };
const lateMs = 40;

describe.skipIf(nativeBackends.length === 0)(
  'attention workers behind a faulty network (need the native kernels)',
  () => {
    const folder = new ModelFolder();
    let workers: readonly OwnWorker[];
    let model: ModelWorker;
    let network: Thread;
    let ports: readonly number[];
    let expected: readonly (Uint32Array | undefined)[];
    let path: string;

    beforeAll(async () => {
      path = folder.huggingFace(oddSpec, 'f32');
      const single = new ModelWorker(path, 'pages');
      expected = schedule.map((step) => single.run(step, []));
      single.close();
      model = new ModelWorker(path, 'workers');
      workers = [new OwnWorker(model, 2), new OwnWorker(model, 2)];
      const [first, second] = workers.map(({ port }) => port);
      network = new Thread(new URL('./faulty-network.mjs', import.meta.url), {
        workerData: { target: { host: '127.0.0.1', port: first } },
      });
      const [{ port }] = await once(network, 'message');
      ports = [port, second];
    });

    afterAll(async () => {
      await network.terminate();
      model.close();
      for (const worker of workers) worker.close();
      folder.remove();
    });

    /** Frames so far since the last call, and the fault to inject next. */
    async function inject(fault?: object | 'release'): Promise<Readonly<Record<string, number>>> {
      network.postMessage(fault);
      const [counts] = await once(network, 'message');
      return counts;
    }

    let links: WorkerLink[] = [];
    /** Connects to the workers with broken links: their pages count as empty. */
    function reconnect(): void {
      links = ports.map((port, i) => {
        const link = links[i];
        if (link?.isBroken === false) return link;
        link?.close();
        return model.connect(port, 2);
      });
    }

    /** Runs the schedule up to the step that is not answered. Returns the number of answered steps. */
    async function play(): Promise<number> {
      for (const [i, step] of schedule.entries()) {
        const startedMs = performance.now();
        const bits = model.run(step, links);
        expect(performance.now() - startedMs).toBeLessThan(deadlineMs + 2_000);
        if (bits === undefined) return i;
        expect(bits, `bits of step ${i}`).toEqual(expected[i]);
        // Frames behind the last result arrive.
        await new Promise((resolve) => setImmediate(resolve));
      }
      return schedule.length;
    }

    /** One fault in a schedule; a lost worker is connected again, and all is computed again. Returns the losses. */
    async function round(prng: Prng, kind: (typeof kinds)[number], anomaly: Anomaly): Promise<number> {
      reconnect();
      await inject();
      expect(await play()).toBe(schedule.length);
      const { [kind]: frames = 0 } = await inject({
        ...{ kind, anomaly: anomaly === 'too late' ? 'late' : anomaly, at: prng.uniform() },
        ms: anomaly === 'too late' ? deadlineMs + lateMs : lateMs,
        // Not in the last step, so that the fault is noticed; an orphan after the first step of the second sequence.
        skips: prng.integer(anomaly === 'orphan' ? 5 * framesOf[kind] : 0, 7 * framesOf[kind] - 1),
      });
      expect(frames).toBe(schedule.length * framesOf[kind]);
      let losses = 0;
      while ((await play()) < schedule.length) {
        losses += links.filter(({ isBroken }) => isBroken).length;
        expect(links.map(({ isBroken }) => isBroken)).toEqual([true, false]);
        expect(losses).toBeLessThan(3);
        reconnect();
      }
      expect((await inject()).spoilt).toBe(1);
      return losses;
    }

    /** A frame that is late within the deadline changes nothing. */
    const harmless = kinds.map((kind) => `${kind} late`);
    const threads = () => readdirSync('/proc/self/task').length;
    const descriptors = () => readdirSync('/proc/self/fd').length;

    test('give the bits of one instance or are lost, for each kind of frame and of fault, and leave nothing behind', async () => {
      const prng = new Prng(1, 1);
      const pairs = kinds.flatMap((kind) => [...anomalies, 'too late' as const].map((anomaly) => ({ kind, anomaly })));
      const losses = new Map<string, number>();
      for (const { kind, anomaly } of pairs) losses.set(`${kind} ${anomaly}`, await round(prng, kind, anomaly));
      expect([...losses].filter(([, count]) => count === 0).map(([name]) => name)).toEqual(harmless);
      const before = { threads: threads(), descriptors: descriptors() };
      for (let i = 0; i < 14; i++) {
        const { kind, anomaly } = pairs[prng.integer(0, pairs.length - 1)];
        await round(prng, kind, anomaly);
      }
      // A connection that has just ended may still be closing.
      expect(threads()).toBeLessThanOrEqual(before.threads + 1);
      expect(descriptors()).toBeLessThanOrEqual(before.descriptors + 3);
    });

    test('store the pages of a prompt, or are lost, for each kind of fault', async () => {
      const prefill = new ModelWorker(path, 'pages');
      for (const step of schedule.slice(0, 3)) prefill.run(step, []);
      const pages = prefill.pagesOf(0).flatMap(({ pageTable }) => [...pageTable]);
      const pairs = Int32Array.from(pages.flatMap((page) => [page, page]));
      const faults = ['lost', 'twice', 'late', 'overtaken', 'orphan', 'corrupt', 'cut'] as const;
      for (const [kind, anomaly] of [...faults.map((each) => ['pages', each] as const), ['result', 'lost'] as const]) {
        reconnect();
        const senders = ports.map((port) => model.sender(port, 2));
        // The fault befalls the first frame, or an earlier frame comes before the second.
        await inject({ kind, anomaly, at: 0.5, ms: lateMs, skips: anomaly === 'orphan' ? 1 : 0 });
        /** Resolves when all pages have arrived, or cannot. */
        const sent = async (worker: number): Promise<boolean> => {
          const sender = senders[worker];
          for (const part of [pairs.subarray(0, pages.length), pairs.subarray(pages.length)]) {
            const pull = sender.pull(prefill.pool, worker, part);
            await expect.poll(() => sender.isBroken || sender.isPulled(pull)).toBe(true);
          }
          return !sender.isBroken;
        };
        expect([await sent(0), await sent(1)], `${kind} ${anomaly}`).toEqual([anomaly === 'late', true]);
        if (senders[0].isBroken) {
          // The worker is lost: all its links are opened again.
          senders[0].close();
          links[0].close();
          expect((await inject()).spoilt).toBe(1);
          links = [model.connect(ports[0], 2), links[1]];
          senders[0] = model.sender(ports[0], 2);
          expect(await sent(0)).toBe(true);
        }
        expect(model.run(schedule[3], links), `${kind} ${anomaly}`).toEqual(expected[3]);
        for (const sender of senders) sender.close();
      }
      prefill.close();
    });

    test('ignore frames of a broken connection that arrive after the next one has written the same pages', async () => {
      reconnect();
      // Queries and keys of the second sequence's long chunk, in the first layer.
      await inject({ kind: 'query', anomaly: 'withheld', skips: 5 * framesOf.query });
      expect(await play()).toBe(5);
      reconnect();
      // The first sequence is computed again, now in the pages that the second one had.
      for (const [i, { sequence }] of schedule.slice(0, 4).entries()) {
        if (i === 2) {
          await inject('release');
          await new Promise((resolve) => setTimeout(resolve, 100));
        }
        expect(model.run({ sequence, mapping: 1 }, links), `bits of step ${i}`).toEqual(expected[i]);
      }
    });
  },
);
