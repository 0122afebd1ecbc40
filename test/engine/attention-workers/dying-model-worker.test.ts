// The death of a model worker: attention workers keep its pages, and another model worker runs its step again over them.
// An instance that waits for the workers of a living one takes all of them when they are free.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { root } from '../../../scripts/root.mjs';
import { openAttentionWorkers } from '../../../src/cli/serve/attention/attention-workers.ts';
import type { WorkerLink } from '../../../src/kernel/native/attention-workers.ts';
import { Prng } from '../../../src/util/prng.ts';
import { leftToUs } from '../../children.ts';
import { nativeBackends } from '../backends.ts';
import { ModelFolder, oddSpec } from '../models.ts';
import { isa, ModelWorker, OwnWorker, schedule, token } from './model-worker.ts';

const script = fileURLToPath(new URL('./dying-model-worker.mjs', import.meta.url));
/** Steps of one sequence. */
const steps = schedule.slice(0, 4);

/** Opens a link and keeps it. */
function holdingScript(link: object): string {
  const at = (file: string) => JSON.stringify(pathToFileURL(join(root, 'dist', 'kernel', 'native', file)));
  return `
    const { WorkerLink } = await import(${at('attention-workers.js')});
    const { createNativeBackend } = await import(${at('native.js')});
    const options = { backend: createNativeBackend({ threads: 1, isa: ${JSON.stringify(isa)} }), ...${JSON.stringify(link)} };
    globalThis.link = new WorkerLink(options);
    process.send('linked');
    setInterval(() => {}, 2 ** 30);`;
}

describe.skipIf(nativeBackends.length === 0)(
  'attention workers of a model worker that dies (need the native kernels)',
  () => {
    const folder = new ModelFolder();
    let path: string;
    let model: ModelWorker;
    let workers: readonly OwnWorker[];
    let expected: readonly (Uint32Array | undefined)[];

    beforeAll(() => {
      path = folder.huggingFace(oddSpec, 'f32');
      const single = new ModelWorker(path, 'pages');
      expected = steps.map((step) => single.run(step, []));
      single.close();
      model = new ModelWorker(path, 'workers');
      workers = [new OwnWorker(model, 2), new OwnWorker(model, 2)];
    });

    afterAll(() => {
      model.close();
      for (const worker of workers) worker.close();
      folder.remove();
    });

    /** A model worker in a process of its own computes the first steps, and is killed while it runs the last of them again. */
    async function computeAndDie(count: number, afterMs: number): Promise<void> {
      const data = {
        ...{
          path,
          isa,
          token,
          shard: model.shard(2),
          pages: model.pages,
          blocks: model.pagesOf(0)[0].pageTable.length / oddSpec.layers,
        },
        ports: workers.map(({ port }) => port),
        sequences: steps.slice(0, count).map(({ sequence }) => sequence),
      };
      const child = leftToUs(
        spawn(process.execPath, [script, JSON.stringify(data)], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] }),
      );
      await once(child, 'message');
      await new Promise((resolve) => setTimeout(resolve, afterMs));
      child.kill('SIGKILL');
      await once(child, 'exit');
    }

    /** A worker refuses another owner until the connections of the dead one have ended. */
    async function connect(port: number): Promise<WorkerLink> {
      for (const endMs = Date.now() + 10_000; ; ) {
        try {
          return model.connect(port, 2);
        } catch (error) {
          if (Date.now() > endMs) throw error;
          await new Promise((resolve) => setTimeout(resolve, 20));
        }
      }
    }

    test('keep its pages: the next model worker runs the step again and loses nothing', async () => {
      const prng = new Prng(1, 2);
      let before = 0;
      for (let count = 1; count <= steps.length; count++) {
        await computeAndDie(count, prng.integer(1, 30));
        const links: WorkerLink[] = [];
        for (const { port } of workers) links.push(await connect(port));
        // The last step of the dead one was in flight: its keys are sent again, and overwrite.
        for (let i = count - 1; i < steps.length; i++) expect(model.run(steps[i], links)).toEqual(expected[i]);
        for (const link of links) link.close();
        if (count === 1) before = readdirSync('/proc/self/task').length;
      }
      // Threads of dead connections have ended.
      expect(readdirSync('/proc/self/task').length).toBeLessThanOrEqual(before + 2);
    }, 60_000);

    test('serve a second instance, which waits for all of them, once the first one has ended', async () => {
      const [, second] = workers;
      const link = { shard: model.shard(2), address: second?.worker.address, token, transport: 'tcp' };
      const holder = leftToUs(
        spawn(process.execPath, ['--input-type=module', '-e', holdingScript(link)], {
          stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
        }),
      );
      await once(holder, 'message');
      const addresses = workers.map(({ worker }) => worker.address);
      const shared = { partition: 'heads', form: 'ranges', modelWorkers: 1, batches: 1, transport: 'tcp' } as const;
      const settings = { attentionWorkers: { ...shared, addresses, token, waits: true }, threads: 1 };
      const { backend, model: loaded } = model.parts;
      const memory = { kvBytes: 0, receivePages: 0 };
      let waits: (line: string) => void = () => {};
      const waiting = new Promise<string>((resolve) => (waits = resolve));
      const opening = openAttentionWorkers(settings, backend, loaded, memory, waits);
      expect(await waiting).toMatch(/^Waiting for attention workers: .* it holds the pages of another process$/);
      // The one that is free is given up meanwhile.
      (await connect(workers[0]?.port ?? 0)).close();
      holder.kill('SIGKILL');
      const opened = await opening;
      const [handles = new Int32Array(0)] = opened?.live.handles ?? [];
      for (const [i, step] of steps.entries()) expect(model.runOver(step, handles)).toEqual(expected[i]);
      for (const worker of opened?.linked ?? []) worker.close();
    }, 60_000);
  },
);
