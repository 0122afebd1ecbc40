// The kernel contract on AMX as the addon emulates it with AVX-512: what a machine without tiles can check of those kernels.
import { afterAll, describe, test } from 'vitest';
import { availableIsas, createNativeBackend, findNative } from '../../src/kernel/native.ts';
import { testAttention } from './backend-attention.ts';
import { testOps } from './backend-ops.ts';
import { testSteps } from './backend-steps.ts';

const found = findNative();
const hasAvx512 = found.kind === 'loaded' && availableIsas(found.native).includes('avx512');

describe.skipIf(!hasAvx512)('amx-emulated', () => {
  // Read once, when a kernel first asks: this file has a process of its own.
  process.env.KVASIR_ISA = 'amx-emulated';
  const backend = hasAvx512 ? createNativeBackend({ isa: 'amx', threads: 2 }) : undefined;
  afterAll(() => backend?.close());
  if (backend === undefined) {
    test.skip('needs AVX-512', () => {});
    return;
  }
  testOps(backend);
  testAttention(backend);
  testSteps(backend, (threads) => createNativeBackend({ isa: 'amx', threads }));
});
