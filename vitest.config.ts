// How the tests run. Three workers on two cores: tests of processes spend half their time in waiting for time-outs.
// A worker keeps the modules that it has loaded from one file to the next: no test changes any, and loading them for each file took a tenth of the run.
import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    setupFiles: ['test/setup.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    maxWorkers: 3,
    isolate: false,
  },
});
