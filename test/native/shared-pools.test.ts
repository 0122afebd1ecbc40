// KV pools that other threads and processes map: by handle in this process, by name in others, after a check of the
// description.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../src/kernel/native/native.ts';

const native = loadNative();
const folder = mkdtempSync(join(tmpdir(), 'kvasir-pools-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** Code of another process: reads a page of the named pool, and writes twice its values to the next page. */
const otherProcess = `
const native = require(process.argv[1]);
const pool = native.openPool(native.createBackend(0, 1), process.argv[2]);
const values = new Float32Array(native.pageValues(pool));
native.readPage(pool, 3, values);
native.writePage(pool, 4, values.map((value) => 2 * value));
console.log(values.length, values[0], values[values.length - 1]);
process.exit(0);
`;

describe.skipIf(native === undefined)('shared KV pools', () => {
  it.skipIf(process.platform === 'win32')('are the same memory in two processes', () => {
    if (native === undefined) return;
    const pool = native.createPool(native.createBackend(0, 1), 1, 2, 4, 8, 0);
    const values = Float32Array.from({ length: native.pageValues(pool) }, (_, i) => i + 1);
    native.writePage(pool, 3, values);
    const addon = join(import.meta.dirname, '../../build/kvasir.node');
    const child = spawnSync(process.execPath, ['-e', otherProcess, addon, native.poolName(pool)], { encoding: 'utf8' });
    expect(child.stderr).toBe('');
    expect(child.stdout.trim()).toBe(`${values.length} 1 ${values.length}`);
    const written = new Float32Array(values.length);
    native.readPage(pool, 4, written);
    expect(written).toEqual(values.map((value) => 2 * value));
    native.freePool(pool);
  });

  it.skipIf(process.platform !== 'linux')(
    'are refused before they are mapped where they are none, or cut short',
    () => {
      if (native === undefined) return;
      const backend = native.createBackend(0, 1);
      const other = join(folder, 'other');
      writeFileSync(other, new Uint8Array(4096).fill(7));
      expect(() => native.openPool(backend, other)).toThrow(/Cannot open KV pool .*: it is not a pool of version 1/);
      expect(() => native.openPool(backend, join(folder, 'missing'))).toThrow('No such file');
      const described = new DataView(new ArrayBuffer(32));
      described.setBigUint64(0, 0x6c6f6f70_7369766bn, true);
      [1, 1, 2, 4, 2 ** 30, 0].forEach((value, i) => void described.setInt32(8 + 4 * i, value, true));
      const short = join(folder, 'short');
      writeFileSync(short, new Uint8Array(described.buffer));
      expect(() => native.openPool(backend, short)).toThrow(
        /a KV pool of 1073741824 pages: .* holds 32 bytes, not \d+/,
      );
    },
  );
});
