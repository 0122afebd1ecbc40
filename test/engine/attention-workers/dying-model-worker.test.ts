// The death of a model worker: attention workers keep its pages, and another model worker runs its step again over them.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { WorkerLink } from '../../../src/kernel/native/attention-workers.ts';
import { Prng } from '../../../src/util/prng.ts';
import { leftToUs } from '../../children.ts';
import { nativeBackends } from '../backends.ts';
import { ModelFolder, oddSpec } from '../models.ts';
import { isa, ModelWorker, OwnWorker, schedule, token } from './model-worker.ts';

const script = fileURLToPath(new URL('./dying-model-worker.mjs', import.meta.url));
/** Steps of one sequence. */
const steps = schedule.slice(0, 4);

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
  },
);
