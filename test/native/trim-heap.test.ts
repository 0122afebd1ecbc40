// trimHeap returns freed memory that malloc keeps to the system.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const addon = join(root, 'build', 'kvasir.node');
const report = process.report?.getReport() as { header: { glibcVersionRuntime?: string } } | undefined;

/** 64 MiB of buffers below the mmap threshold; a few that stay allocated keep the heap from shrinking by itself. */
const program = `
  const addon = require(process.argv[1]);
  let buffers = Array.from({ length: 1024 }, () => Buffer.allocUnsafeSlow(65536).fill(1));
  const kept = buffers.filter((_, at) => at % 64 === 63);
  buffers = undefined;
  const before = addon.memoryInfo().anonymousBytes;
  // A thread of the JavaScript engine frees buffers some time after their collection.
  (function trim(triesLeft) {
    gc();
    addon.trimHeap();
    const trimmedMebibytes = (before - addon.memoryInfo().anonymousBytes) / 2 ** 20;
    if (trimmedMebibytes < 40 && triesLeft > 0) return setTimeout(trim, 10, triesLeft - 1);
    console.log(JSON.stringify([trimmedMebibytes, kept.every((buffer) => buffer.every((byte) => byte === 1))]));
  })(1000);
`;

it.skipIf(report?.header.glibcVersionRuntime === undefined || !existsSync(addon))(
  'holes between live allocations go back to the system (needs glibc and the compiled addon)',
  () => {
    const { status, stdout, stderr } = spawnSync(process.execPath, ['--expose-gc', '-e', program, addon], {
      encoding: 'utf8',
    });
    expect([status, stderr]).toEqual([0, '']);
    const [trimmedMebibytes, intact] = JSON.parse(stdout) as [number, boolean];
    expect(trimmedMebibytes).toBeGreaterThan(40);
    expect(trimmedMebibytes).toBeLessThan(64);
    expect(intact).toBe(true);
  },
);
