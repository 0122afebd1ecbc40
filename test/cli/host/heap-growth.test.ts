// Garbage that outlives the young generation: the heap of a process and of its threads stays near what is in use.
import { spawnSync } from 'node:child_process';
import { expect, it } from 'vitest';

/** Prints the mean old generation of the main thread, and of another one, in MB. Up to 20 MB are in use. */
const program = `
  const { Worker } = require('node:worker_threads');
  const churn = async () => {
    const { getHeapSpaceStatistics } = require('node:v8');
    let [held, bytes, samples] = [[], 0, 0];
    for (let i = 0; i < 2500000; i++) {
      held.push({ i, text: [i] });
      if (held.length > 200000) held = [];
      if (i % 10000 !== 0) continue;
      const old = getHeapSpaceStatistics().find((space) => space.space_name === 'old_space');
      bytes += old.physical_space_size;
      samples++;
      await new Promise((resolve) => setImmediate(resolve));
    }
    return Math.round(bytes / samples / 2 ** 20);
  };
  import(process.argv[1]).then(async ({ boundHeapGrowth }) => {
    boundHeapGrowth();
    const source = '(' + churn + ')().then((mean) => require("node:worker_threads").parentPort.postMessage(mean))';
    const main = await churn();
    const thread = await new Promise((resolve) => new Worker(source, { eval: true }).once('message', resolve));
    console.log(JSON.stringify([main, thread]));
  });
`;

it('keeps the old generation of each thread near what is in use', () => {
  const module = new URL('../../../dist/cli/serve/host/heap-growth.js', import.meta.url).href;
  const { stdout, stderr } = spawnSync(process.execPath, ['-e', program, module], { encoding: 'utf8' });
  expect(stderr).toBe('');
  // 45 to 57 MB; without the bound 70 to 100.
  const [main, thread] = JSON.parse(stdout) as number[];
  expect(main + thread).toBeLessThan(64);
});
