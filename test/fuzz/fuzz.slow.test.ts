// Short runs of the fuzz targets, without sanitizers; scripts/explore.mjs runs them longer, with other seeds and with sanitizers.
import { expect, it } from 'vitest';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import { HttpCases } from './http-cases.ts';
import { CaseRunner } from './run-cases.ts';
import type { FuzzTarget } from './target.ts';
import { WireCases } from './wire-cases.ts';

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

async function faultsOf(target: FuzzTarget, cases: number) {
  const faults = [...(await target.checkSeeds())];
  for (let index = 0; index < cases; index++) {
    const fault = await target.run(index);
    if (fault !== undefined) faults.push(fault);
  }
  target.close();
  return faults;
}

it('mutated messages between processes are read as they would be written, or refused in one short line', async () => {
  const cases = new WireCases(1);
  expect(await faultsOf(cases, 400)).toEqual([]);
  expect(Math.min(...Object.values(cases.outcomes))).toBeGreaterThan(50);
});

it('mutated HTTP requests are served or refused in the shape of their protocol, and leave no request behind', async () => {
  const cases = new HttpCases(1);
  expect(await faultsOf(cases, 250)).toEqual([]);
  expect(Math.min(...Object.values(cases.outcomes))).toBeGreaterThan(10);
});
