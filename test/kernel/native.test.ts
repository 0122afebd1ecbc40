// Finding the native kernels, choosing an instruction set, and sharing handles and memory between threads.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { afterEach, describe, expect, test } from 'vitest';
import { availableIsas, createNativeBackend, findNative, loadNative } from '../../src/kernel/native/native.ts';

const native = loadNative();
const forced = process.env.KVASIR_ISA;

afterEach(() => {
  if (forced === undefined) delete process.env.KVASIR_ISA;
  else process.env.KVASIR_ISA = forced;
});

test('a missing or foreign addon is absent, with the reason in one line', () => {
  expect(findNative('/nowhere/kvasir.node')).toEqual({
    kind: 'absent',
    why: 'the native kernels are not compiled: /nowhere/kvasir.node is missing',
  });
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-native-'));
  const path = join(folder, 'kvasir.node');
  writeFileSync(path, 'not a library');
  const found = findNative(path);
  rmSync(folder, { recursive: true });
  expect(found.kind === 'absent' && found.why).toMatch(/^the native kernels do not load: [^\n]*$/);
});

describe.skipIf(native === undefined)('native kernels', () => {
  test('KVASIR_ISA selects the instruction set; a missing one is refused with a list of the available ones', () => {
    process.env.KVASIR_ISA = 'portable';
    const backend = createNativeBackend({ threads: 1 });
    expect(backend.isa).toBe('portable');
    backend.close();
    process.env.KVASIR_ISA = 'avx1024';
    expect(() => createNativeBackend({ threads: 1 })).toThrow(/KVASIR_ISA must be portable.*avx1024/);
    process.env.KVASIR_ISA = 'portable';
    expect(() => createNativeBackend({ threads: 1, isa: 'avx2' })).toThrow(
      'Cannot use instruction set avx2: this machine has portable',
    );
    expect(native === undefined ? [] : availableIsas(native)).toEqual(['portable']);
  });

  test('a pool is the same memory in every thread, and shared arrays are accepted', async () => {
    const backend = createNativeBackend({ threads: 2 });
    const pool = backend.createKvPool({ pages: 3, kvHeads: 1, headDim: 4, type: 'f32' });
    const values = Float32Array.from({ length: 2 * 32 * 4 }, (_, i) => i / 7);
    backend.writePage(pool, 1, values);
    const shared = new Float32Array(new SharedArrayBuffer(values.byteLength));
    const addon = fileURLToPath(new URL('../../build/kvasir.node', import.meta.url));
    const code = `
      const { workerData } = require('node:worker_threads');
      const native = require(workerData.addon);
      native.readPage(workerData.pool, 1, workerData.shared);
      native.writePage(workerData.pool, 2, workerData.shared);
    `;
    const worker = new Worker(code, { eval: true, workerData: { addon, pool, shared } });
    await new Promise((resolve, reject) => worker.on('exit', resolve).on('error', reject));
    expect(shared).toEqual(Float32Array.from(values));
    expect(backend.readPage(pool, 2)).toEqual(values);
    backend.freeKvPool(pool);
    expect(() => backend.readPage(pool, 2)).toThrow(/Cannot use KV pool: no such handle/);
    backend.close();
  });

  test('arguments of another type or length are refused', () => {
    const backend = createNativeBackend({ threads: 1 });
    const linear = backend.createLinear({ columns: 64, segments: [{ type: 'q8_0', rows: 3 }], inputs: 'int8' });
    expect(() => backend.packRows(linear, 0, 0, 3, new Uint8Array(203))).toThrow('wrong length: 203 bytes, not 204');
    expect(() => backend.packRows(linear, 0, 2, 2, new Uint8Array(136))).toThrow(
      /rows: it is not an integer from 0 to 1/,
    );
    expect(() => backend.packRows(linear, 1, 0, 1, new Uint8Array(68))).toThrow(/segment: it is not an integer/);
    expect(() => backend.createVector(new Float64Array(3) as unknown as Float32Array)).toThrow(
      /not of type Float32Array/,
    );
    backend.freeLinear(linear);
    backend.close();
  });

  test('memory figures are those of this process', () => {
    const before = native?.memoryInfo();
    expect(before?.residentBytes).toBeGreaterThan(10e6);
    expect(before?.residentPeakBytes).toBeGreaterThanOrEqual(before?.anonymousBytes ?? 0);
    expect(before?.availableBytes).toBeGreaterThan(0);
  });
});
