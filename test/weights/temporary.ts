// Temporary files of a test, and the location of shared models if this checkout has them.
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll } from 'vitest';

export const sharedModels = resolve(import.meta.dirname, '../../../shared/models');
export const hasShared = existsSync(sharedModels);

/** A folder that is removed after the tests of the calling file. */
export function temporaryFolder(): {
  readonly path: string;
  write(name: string, content: Uint8Array | string): string;
} {
  const path = mkdtempSync(join(tmpdir(), 'kvasir-weights-'));
  afterAll(() => rmSync(path, { recursive: true, force: true }));
  return {
    path,
    write(name, content) {
      const file = join(path, name);
      writeFileSync(file, content);
      return file;
    },
  };
}
