// How the tests run. Three workers on two cores: tests of processes spend half of their time waiting for time-outs.
// A worker keeps loaded modules from one file to the next: loading them for each file would take a tenth of the run.
import { defineConfig } from 'vitest/config';
import { compiledSources } from './test/compiled-sources.ts';
import { LongestFirst } from './test/longest-first.ts';

/** Files with settings that the addon reads once per process: each runs in a process of its own. */
const alone = ['test/contract/backend-amx-emulated.test.ts'];

/** Kinds of tests that `npm test -- --fast` leaves out: processes, sanitizer builds, random faults and long benches. */
const slow = [
  'test/e2e/**',
  'test/native/**',
  'test/contract/*-native.test.ts',
  'test/**/*-{chaos,mutants,combinations,over-bus}.test.ts',
  'test/**/{combinations,mutants}.test.ts',
  'test/**/*.slow.test.ts',
];

export default defineConfig(({ mode }) => {
  const isFast = mode === 'fast';
  // Long enough for a busy machine, and for instrumented kernels. A test that hangs is reported late.
  const isSanitized = mode === 'sanitized';
  const timeoutMs = isSanitized ? 1_800_000 : 180_000;
  // Projects evaluate this file again, without the mode: what depends on it is stated for each.
  const limits = { testTimeout: timeoutMs, hookTimeout: timeoutMs, maxWorkers: isSanitized ? 1 : 3 };
  const shared = {
    extends: true as const,
    test: {
      name: 'shared',
      ...limits,
      include: ['test/**/*.test.ts'],
      exclude: isFast ? [...alone, ...slow] : alone,
      isolate: false,
    },
  };
  return {
    plugins: [compiledSources],
    test: {
      execArgv: ['--enable-source-maps'],
      globalSetup: ['test/global-setup.ts'],
      setupFiles: ['test/setup.ts'],
      ...limits,
      // Compiled already.
      server: { deps: { external: [/\/(dist|bundle)\//] } },
      sequence: { sequencer: LongestFirst },
      projects: isFast ? [shared] : [shared, { extends: true, test: { name: 'alone', ...limits, include: alone } }],
    },
  };
});
