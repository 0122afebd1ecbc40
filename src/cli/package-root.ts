// Paths inside this package, wherever it is installed.
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** From `src/cli` as from `dist/cli` and `bundle/cli`, the package is two folders up. */
export function packageFile(path: string): string {
  return fileURLToPath(new URL(`../../${path}`, import.meta.url));
}

/** The version of this package. */
export function packageVersion(): string {
  const { version } = JSON.parse(readFileSync(packageFile('package.json'), 'utf8')) as { version: string };
  return version;
}

/** The model that ships with the package. */
export const embeddedModel = packageFile('models/kvasir-tiny/kvasir-tiny-q8_0.gguf');
