// Paths inside this package, wherever it is installed.
import { fileURLToPath } from 'node:url';

/** From `src/cli` as from `dist/cli` and `bundle/cli`, the package is two folders up. */
export function packageFile(path: string): string {
  return fileURLToPath(new URL(`../../${path}`, import.meta.url));
}

/** The model that ships with the package. */
export const embeddedModel = packageFile('models/kvasir-tiny/kvasir-tiny-q8_0.gguf');
