// The kernel contract on the AMX kernels over emulated tiles, for machines with AVX-512 and without AMX.
import { afterAll, describe, test } from 'vitest';
import type { Backend } from '../../src/kernel/backend.ts';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import { testAttention } from './backend-attention.ts';
import { testOps } from './backend-ops.ts';
import { testRemoteKeys } from './backend-remote.ts';
import { testSparse } from './backend-sparse.ts';
import { testSteps } from './backend-steps.ts';
import { testWindows } from './backend-windows.ts';

// The addon reads the variable once, at first use: this file has a process of its own.
process.env.KVASIR_ISA = 'amx-emulated';

function emulated(threads: number): Backend {
  return createNativeBackend({ isa: 'amx', threads });
}

/** Undefined if the kernels are not compiled, or the machine lacks AVX-512, which the emulation uses. */
function tryEmulated(): Backend | undefined {
  if (loadNative() === undefined) return undefined;
  try {
    return emulated(2);
  } catch (error) {
    if (String(error).includes('Cannot emulate AMX')) return undefined;
    throw error;
  }
}

const backend = tryEmulated();
if (backend === undefined) {
  test.skip('emulated AMX: needs the native kernels and AVX-512', () => {});
} else {
  describe('amx-emulated', () => {
    afterAll(() => backend.close());
    testOps(backend);
    testAttention(backend);
    testWindows(backend);
    testRemoteKeys(backend);
    testSparse(backend);
    testSteps(backend, emulated);
  });
}
