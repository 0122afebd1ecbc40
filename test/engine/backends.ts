// Backends of this machine for engine tests: the reference, and the native kernels of every instruction set.
import type { Backend } from '../../src/kernel/backend.ts';
import { availableIsas, createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';

export interface NamedBackend {
  readonly name: string;
  readonly native: boolean;
  readonly create: (threads: number) => Backend;
}

const native = loadNative();

export const nativeBackends: readonly NamedBackend[] = (native === undefined ? [] : availableIsas(native)).map(
  (isa) => ({
    name: isa,
    native: true,
    create: (threads) => createNativeBackend({ threads, isa }),
  }),
);

export const backends: readonly NamedBackend[] = [
  { name: 'reference', native: false, create: () => new ReferenceBackend() },
  ...nativeBackends,
];
