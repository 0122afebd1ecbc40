// Runs once before all test files: they run the compiled sources, and start processes and threads from their bundle.
import { ensureBundled } from '../scripts/bundle.mjs';
import { ensureBuilt } from '../scripts/steps.mjs';

export async function setup(): Promise<void> {
  await ensureBuilt(console.log);
  await ensureBundled();
}
