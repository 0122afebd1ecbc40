// Runs a simulation over a workload, and feeds its outputs.
import type { StepWatch } from '../../sim/engine/executor.ts';
import type { Simulation } from '../../sim/engine/simulation.ts';
import type { Labels } from '../../trace/labels.ts';
import { type OutputOptions, RunOutputs } from './run-outputs.ts';
import type { TracePiece } from './trace-file.ts';

/** After the last arrival, events between two progress updates. */
const eventsBetweenLooks = 10_000;

/** @param names of the instances */
export async function replay(
  workload: AsyncIterable<TracePiece>,
  names: readonly string[],
  options: OutputOptions,
  labels: Labels,
  create: (watch: StepWatch | undefined) => Simulation,
): Promise<Simulation> {
  const outputs = await RunOutputs.open(options, names);
  const simulation = create(outputs.watch);
  const recorder = outputs.recorderOf(simulation);
  for await (const { requests, share } of workload) {
    for (const request of requests) {
      recorder?.advance(request.arrivalUs);
      simulation.arrive(labels.take(request));
    }
    await outputs.progressed(share, simulation);
  }
  while (!simulation.isOver) {
    for (let i = 0; i < eventsBetweenLooks && !simulation.isOver; i++) {
      recorder?.advance(simulation.nextUs);
      simulation.advance(simulation.nextUs);
    }
    await outputs.progressed(1, simulation);
  }
  simulation.finish();
  await outputs.close(simulation);
  return simulation;
}
