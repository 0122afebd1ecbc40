// The kernels in force: native where they were built, else the TypeScript oracle.
import { existsSync } from 'node:fs';
import type { Backend } from '../../kernel/backend.ts';
import { createNativeBackend, findNative } from '../../kernel/native/native.ts';
import { ReferenceBackend } from '../../kernel/reference/reference.ts';
import { packageFile } from '../package-root.ts';

const addon = packageFile('build/kvasir.node');

/** @throws Error when KVASIR_ISA names an instruction set that this machine lacks */
export function createBackend(threads: number, log: (message: string) => void = console.error): Backend {
  const found = findNative();
  if (found.kind === 'loaded') return createNativeBackend({ threads });
  // Without a compiler the build has said so already.
  if (existsSync(addon)) log(`Computing with the TypeScript oracle, which is slow: ${found.why}`);
  return new ReferenceBackend();
}

/** Opens the kernels in force for `use` alone. */
export function withBackend<T>(threads: number, use: (backend: Backend) => T): T {
  const backend = createBackend(threads);
  try {
    return use(backend);
  } finally {
    backend.close();
  }
}
