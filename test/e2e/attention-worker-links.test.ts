// Links to an attention worker of another process: a stopped process breaks its link, and the pages have one owner.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';
import { Engine } from '../../src/engine/engine.ts';
import { freeModel, loadModel } from '../../src/engine/load-model.ts';
import { groupedStep, plainPages } from '../../src/engine/plain-step.ts';
import { loadNative } from '../../src/kernel/native/addon.ts';
import { WorkerLink } from '../../src/kernel/native/attention-workers.ts';
import { createNativeBackend } from '../../src/kernel/native/native.ts';

const model = join(root, 'models', 'kvasir-tiny', 'kvasir-tiny-q8_0.gguf');
const token = 'a secret of this test';
const deadlineMs = 1_000;

const children: ChildProcess[] = [];
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
});

async function startWorker(): Promise<{ readonly child: ChildProcess; readonly address: string }> {
  const role = ['join', '--role', 'attention', '--shard', '1/1', '--model', model, '--kv-memory', '32m'];
  const child = spawn(process.execPath, [join(root, 'bundle', 'cli', 'main.js'), ...role], {
    env: { ...process.env, KVASIR_TOKEN: token },
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  children.push(child);
  const [{ address }] = await once(child, 'message');
  return { child, address };
}

/** Stops a process. The signal is sent at once, and its threads stop a moment later. */
async function stop(child: ChildProcess): Promise<void> {
  child.kill('SIGSTOP');
  const threads = `/proc/${child.pid}/task`;
  const states = () => readdirSync(threads).map((id) => readFileSync(join(threads, id, 'stat'), 'utf8'));
  await expect.poll(() => states().every((state) => state.includes(') T '))).toBe(true);
}

/** Opens a link in a process of its own. @returns the error, or nothing */
function linkFromOtherProcess(address: string, shard: object): string {
  const at = (file: string) => JSON.stringify(pathToFileURL(join(root, 'dist', 'kernel', 'native', file)));
  const script = `
    const { WorkerLink } = await import(${at('attention-workers.js')});
    const { createNativeBackend } = await import(${at('native.js')});
    const backend = createNativeBackend({ threads: 1 });
    try { new WorkerLink({ backend, ...${JSON.stringify({ shard, address, token })} }); } catch (error) { console.log(error.message); }
    process.exit();`;
  return spawnSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8' }).stdout.trim();
}

describe.skipIf(loadNative() === undefined)('an attention worker in another process (needs the native kernels)', () => {
  it('is lost when it is stopped, and serves one process at a time', async () => {
    const { child, address } = await startWorker();
    const backend = createNativeBackend({ threads: 1 });
    const loaded = loadModel({ model, backend, attention: 'workers' });
    const { type, kvHeads, headDim, groups } = loaded.kv;
    const shard = { type, kvHeads, headDim };
    const link = new WorkerLink({ backend, shard, address, token, deadlineMs });
    const limits = { tokensMax: 64, logitRowsMax: 8, kvBytes: 0 };
    const engine = new Engine({ model: loaded, backend, ...limits, pagesAtWorkers: link.pages });
    const run = (start: number) => {
      const rows = { tokens: [1, 2, 3], start, blocks: [0], logits: 'last' } as const;
      const step = { ...groupedStep([rows], plainPages(8, groups)), attentionWorkers: Int32Array.of(link.handle) };
      const outcome = engine.run(step, new Int32Array(1));
      if (outcome.kind !== 'done') throw new Error('the step was aborted');
      return outcome.result.failedSequences;
    };
    try {
      expect(run(0)).toEqual(new Int32Array(0));
      expect(linkFromOtherProcess(address, shard)).toContain('it holds the pages of another process');
      await stop(child);
      const startedMs = performance.now();
      expect(run(3)).toEqual(Int32Array.of(0));
      expect(link.isBroken).toBe(true);
      expect(performance.now() - startedMs).toBeGreaterThan(deadlineMs - 1);
      child.kill('SIGCONT');
      link.close();
      await expect.poll(() => linkFromOtherProcess(address, shard), { timeout: 20_000 }).toBe('');
    } finally {
      engine.close();
      freeModel(loaded, backend);
      backend.close();
    }
  });
});
