// The addon frees the objects of a thread when it ends, unless another thread has used them.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const addon = join(root, 'build', 'kvasir.node');

/** A worker makes two pools of 64 MiB and fills them; the main thread uses one of them, and the worker is terminated. */
const program = `
  const { Worker } = require('node:worker_threads');
  const addon = require(process.argv[1]);
  const made = () => {
    const { parentPort } = require('node:worker_threads');
    const addon = require(process.argv[2]);
    const backend = addon.createBackend(addon.detectIsa(), 2);
    const pools = [0, 1].map(() => addon.createPool(backend, 1, 8, 128, 256, 0));
    const page = new Float32Array(2 * 8 * 32 * 128).fill(1.5);
    for (const pool of pools) for (let i = 0; i < 256; i++) addon.writePage(pool, i, page);
    parentPort.postMessage({ backend, pools });
    setInterval(() => {}, 1000);
  };
  const worker = new Worker('(' + made + ')()', { eval: true, argv: [process.argv[1]] });
  worker.on('message', ({ backend, pools: [kept, dropped] }) => {
    const values = addon.pageValues(kept);
    const before = addon.memoryInfo().anonymousBytes;
    worker.on('exit', () => {
      const out = new Float32Array(values);
      addon.readPage(kept, 255, out);
      const refusals = [() => addon.pageValues(dropped), () => addon.createPool(backend, 1, 1, 2, 1, 0)].map((use) => {
        try { return use(); } catch (error) { return error.message; }
      });
      const freedMebibytes = Math.round((before - addon.memoryInfo().anonymousBytes) / 2 ** 20);
      addon.freePool(kept);
      console.log(JSON.stringify([out[7], refusals, freedMebibytes >= 60 && freedMebibytes < 100]));
    });
    worker.terminate();
  });
`;

it.skipIf(process.platform !== 'linux' || !existsSync(addon))(
  'objects go with the last thread that used them (needs Linux and the compiled addon)',
  () => {
    const { status, stdout, stderr } = spawnSync(process.execPath, ['-e', program, addon], { encoding: 'utf8' });
    expect([status, stderr]).toEqual([0, '']);
    const none = expect.stringContaining('no such handle');
    expect(JSON.parse(stdout)).toEqual([1.5, [none, none], true]);
  },
);
