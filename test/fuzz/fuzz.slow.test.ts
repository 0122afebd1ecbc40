// A short run of the fuzz target without sanitizers; scripts/fuzz.mjs runs it longer and with sanitizers.
import { expect, it } from 'vitest';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import { CaseRunner } from './run-cases.ts';

it.skipIf(loadNative() === undefined)(
  'mutated model files are served, or refused by one line that names them (needs the compiled kernels)',
  () => {
    const runner = new CaseRunner(20, createNativeBackend({ threads: 1 }));
    try {
      expect(runner.checkSeeds()).toEqual([]);
      const faults = Array.from({ length: 400 }, (_, index) => runner.run(index)).filter(
        (fault) => fault !== undefined,
      );
      expect(faults).toEqual([]);
      // The headers refuse most mutants. Enough must pass them to test later stages.
      expect(runner.outcomes.served).toBeGreaterThan(50);
      expect(runner.outcomes.text).toBeGreaterThan(20);
      expect(runner.outcomes.load + runner.outcomes.use).toBeGreaterThan(10);
    } finally {
      runner.close();
    }
  },
);
