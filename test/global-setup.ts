// Runs once before all test files: they run the compiled sources, and start processes and threads from bundles.
import { ensureBundled } from '../scripts/bundle.mjs';
import { ensureBuilt } from '../scripts/steps.mjs';
import { bundleWorker } from './bundled-worker.ts';

export async function setup(): Promise<void> {
  await ensureBuilt(console.log);
  await ensureBundled();
  await bundleWorker();
}
