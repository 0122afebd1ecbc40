// Backends that this machine can run the engine on.
import type { Backend } from '../../src/kernel/backend.ts';
import { ReferenceBackend } from '../../src/kernel/reference.ts';

export interface NamedBackend {
  readonly name: string;
  readonly native: boolean;
  readonly create: (threads: number) => Backend;
}

export const backends: readonly NamedBackend[] = [
  { name: 'reference', native: false, create: () => new ReferenceBackend() },
];
