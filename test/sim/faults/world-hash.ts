// The outcome of a chaos world without its checks, as one hash.

import { Simulation } from '../../../src/sim/engine/simulation.ts';
import type { RequestWorld } from '../../../src/sim/faults/request-worlds.ts';

/** The state hash of a world with occasional cancels. */
export function hashOf({ config, trace }: RequestWorld, coalesce: boolean): string {
  const instances = config.instances.map((one) => ({ ...one, machine: { ...one.machine, coalesce } }));
  const simulation = new Simulation({ ...config, instances, checking: false });
  for (const request of trace) {
    simulation.arrive(request);
    if (request.index % 12 === 11) simulation.cancel(String(request.index - 3));
  }
  simulation.finish();
  return simulation.outcome.stateHash;
}
