// Faults that a preloaded library injects into a process: a hung thread, and a disk that does not answer.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, it } from 'vitest';
import { InjectedFaults } from '../../../src/cli/bench/cluster/injected-faults.ts';

/** Its second thread counts; the first one prints that number and the number of reads of a file that have returned. */
const script = `
  const { Worker } = require('node:worker_threads');
  const { open } = require('node:fs/promises');
  const count = new Int32Array(new SharedArrayBuffer(4));
  const source = "const count = require('node:worker_threads').workerData; for (;;) Atomics.add(count, 0, 1);";
  new Worker(source, { eval: true, workerData: count });
  let reads = 0;
  open(process.argv[1]).then(async (file) => {
    for (;;) {
      await file.read(Buffer.alloc(1), 0, 1, 0);
      reads++;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  });
  setInterval(() => console.log(Atomics.load(count, 0) + ' ' + reads), 20);
`;

let child: ChildProcess | undefined;
afterEach(() => void child?.kill('SIGKILL'));

const hasCompiler = process.platform === 'linux' && spawnSync('cc', ['--version']).status === 0;

it.skipIf(!hasCompiler && process.env.CI === undefined)(
  'a thread hangs and a disk stalls, while the others of the process run (needs a C compiler)',
  async () => {
    const faults = new InjectedFaults();
    const file = join(faults.diskFolder('0'), 'file');
    writeFileSync(file, 'x');
    child = spawn(process.execPath, ['-e', script, file], {
      env: { ...process.env, ...faults.env },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const lines: (readonly [count: number, reads: number])[] = [];
    child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      for (const line of text.trim().split('\n')) lines.push(line.split(' ').map(Number) as [number, number]);
    });
    /** Waits for so many more lines. */
    const next = async (more: number): Promise<void> => {
      const end = lines.length + more;
      while (lines.length < end) await new Promise((resolve) => setTimeout(resolve, 5));
    };
    const advances = (column: 0 | 1) => lines.at(-1)?.[column] !== lines.at(-4)?.[column];
    const until = async (holds: () => boolean): Promise<void> => {
      while (!holds()) await next(1);
    };
    await until(() => advances(0) && advances(1));
    // The thread that counts has then used more time than those that have started the process.
    await next(25);
    const pid = child.pid ?? 0;
    faults.hang(pid);
    // For half a second of prints, since a busy machine stops any thread for some of them.
    const isHung = () => lines.at(-1)?.[0] === lines.at(-25)?.[0] && lines.at(-1)?.[1] !== lines.at(-25)?.[1];
    await until(() => lines.length >= 25 && isHung());
    const hungAt = lines.at(-1)?.[0];
    faults.stallDisk(pid, 400);
    await until(() => !advances(1));
    await until(() => advances(1));
    expect(lines.at(-1)?.[0]).toBe(hungAt);
    faults.remove();
  },
);
