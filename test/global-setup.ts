// Runs once before all test files: tests start processes and threads from the bundle of the compiled sources.
import { ensureBundled } from '../scripts/bundle.mjs';

export const setup = ensureBundled;
