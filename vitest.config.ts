// How the tests run. Three workers on two cores: tests of processes spend half their time in waiting for time-outs.
// A worker keeps the modules that it has loaded from one file to the next: loading them for each file took a tenth of the run.
import { defineConfig } from 'vitest/config';
import { LongestFirst } from './test/longest-first.ts';

/** Files whose settings the addon reads once in a process: each has one of its own. */
const alone = ['test/contract/backend-amx-emulated.test.ts'];

export default defineConfig({
  test: {
    setupFiles: ['test/setup.ts'],
    // Patience with a busy machine, and no check: what hangs is told late.
    testTimeout: 180_000,
    hookTimeout: 180_000,
    maxWorkers: 3,
    sequence: { sequencer: LongestFirst },
    projects: [
      { extends: true, test: { name: 'shared', include: ['test/**/*.test.ts'], exclude: alone, isolate: false } },
      { extends: true, test: { name: 'alone', include: alone } },
    ],
  },
});
