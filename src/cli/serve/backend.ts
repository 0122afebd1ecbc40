// Selects the kernels: native if they are compiled, else the TypeScript reference.
import { existsSync } from 'node:fs';
import type { Backend, Isa } from '../../kernel/backend.ts';
import { nativeIsas } from '../../kernel/codes.ts';
import { createNativeBackend, findNative } from '../../kernel/native/native.ts';
import { addonPath } from '../../kernel/native/platform-package.ts';
import { ReferenceBackend } from '../../kernel/reference/reference.ts';

/** @throws Error if KVASIR_ISA names an instruction set that this machine lacks */
export function createBackend(threads: number, log: (message: string) => void = console.error): Backend {
  const found = findNative();
  if (found.kind === 'loaded') return createNativeBackend({ threads });
  // Without an addon the build has already printed the reason.
  if (existsSync(addonPath())) log(`Computing with the slow TypeScript reference: ${found.why}`);
  return new ReferenceBackend();
}

/** The instruction set of the selected kernels. */
export function machineIsa(): Isa {
  const found = findNative();
  return found.kind === 'loaded' ? nativeIsas[found.native.detectIsa()] : 'reference';
}

/** Opens the selected kernels while `use` runs. */
export function withBackend<T>(threads: number, use: (backend: Backend) => T): T {
  const backend = createBackend(threads);
  try {
    return use(backend);
  } finally {
    backend.close();
  }
}
