// The kernel contract on every instruction set of this machine.
import { afterAll, describe, test } from 'vitest';
import { availableIsas, createNativeBackend, findNative } from '../../src/kernel/native/native.ts';
import { testAttention } from './backend-attention.ts';
import { testOps } from './backend-ops.ts';
import { testRemoteKeys } from './backend-remote.ts';
import { testSampling } from './backend-sampling.ts';
import { testSparse } from './backend-sparse.ts';
import { testRefusals, testSteps } from './backend-steps.ts';
import { testWindows } from './backend-windows.ts';

const found = findNative();
if (found.kind === 'absent') test.skip(`native kernels: ${found.why}`, () => {});

for (const isa of found.kind === 'loaded' ? availableIsas(found.native) : []) {
  describe(isa, () => {
    const backend = createNativeBackend({ isa, threads: 2 });
    afterAll(() => backend.close());
    testOps(backend);
    testAttention(backend);
    testWindows(backend);
    testRemoteKeys(backend);
    testSparse(backend);
    testSampling(backend);
    testSteps(backend, (threads) => createNativeBackend({ isa, threads }));
    testRefusals(backend);
  });
}
