// The entry of the instances of tests as one file: a thread that loads it starts in half the time that its modules take.
import { mkdirSync, renameSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { rolldown } from 'rolldown';
import { root } from '../scripts/root.mjs';

/** Entry of an instance's thread that exits at requests with certain ids (see dying-worker.mjs). */
export const dyingWorker = pathToFileURL(join(root, 'build', 'tests', 'dying-worker.mjs'));

/** Code finds other files relative to its module: each module keeps its own URL. */
const ownUrls = {
  name: 'own-urls',
  transform(code: string, id: string) {
    if (!id.startsWith(join(root, 'dist')) || !code.includes('import.meta.url')) return undefined;
    return code.replaceAll('import.meta.url', JSON.stringify(pathToFileURL(id).href));
  },
};

/** Writes `dyingWorker` from the compiled sources. */
export async function bundleWorker(): Promise<void> {
  const path = fileURLToPath(dyingWorker);
  const input = fileURLToPath(new URL('./runtime/threads/dying-worker.mjs', import.meta.url));
  const build = await rolldown({ input, platform: 'node', plugins: [ownUrls], logLevel: 'warn' });
  // Another run of tests may use the file: it is replaced at once.
  const partial = `${path}.${process.pid}.tmp`;
  mkdirSync(dirname(path), { recursive: true });
  await build.write({ file: partial, format: 'esm', codeSplitting: false });
  await build.close();
  renameSync(partial, path);
}
