// `kvasir/sim`: simulations from a program, without a command line.
import type { z } from 'zod';
import { readOptions } from '../../options/options.ts';
import { type Report, simulationSchema } from '../simulated-run.ts';
import { sweptReport } from './rate-search.ts';
import { runSweep } from './run-sweep.ts';
import { type SweepDefinition, sweepOf } from './sweep-file.ts';
import type { SweepResult } from './sweep-rows.ts';

export type { Report, SweepDefinition, SweepResult };

/** The flags of `kvasir simulate`, their names in camel case; `config` names an experiment. */
export type SimulationFlags = Partial<z.input<typeof simulationSchema>> & { readonly config?: string };

/**
 * Simulates a workload on the calling thread, and writes no files.
 * @returns the object of `kvasir simulate --json`
 * @throws Error whose message names the flag that is wrong
 */
export function simulate(flags: SimulationFlags): Promise<Report> {
  return sweptReport(readOptions(simulationSchema, flags));
}

/** A run of a sweep. */
export type SweptRun = SweepResult & {
  /** The value of each entry of the grid. */
  readonly settings: Readonly<Record<string, string>>;
  readonly seed: number;
};

/**
 * Simulates every combination of `grid` with each seed.
 * @param jobs simulations at once; undefined: as many as cores
 * @returns the runs in the order of the grid, with its last entry first; a run that failed has an `error`
 * @throws Error whose message names the flag that is wrong
 */
export async function sweep(
  definition: SweepDefinition,
  { jobs }: { readonly jobs?: number } = {},
): Promise<readonly SweptRun[]> {
  const planned = sweepOf(definition, 'the sweep');
  const { results } = await runSweep(planned, { jobs });
  return planned.points.map(({ settings, seed }, i) => ({ settings, seed, ...results[i] }));
}
