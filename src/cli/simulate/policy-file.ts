// `kvasir simulate --policy FILE`: eviction, placement and admission of a module beside the named ones.
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { EvictionPolicy } from '../../core/kvcache/eviction.ts';
import type { AdmissionPolicy } from '../../core/router/admission/admission-policy.ts';
import type { PlacementPolicy } from '../../core/router/placement/placement.ts';
import type { SimulationConfig } from '../../sim/engine/simulation.ts';
import { UsageError } from '../usage-error.ts';

/** The exports of a policy file. What it lacks is decided as without it. */
export interface Policies {
  /** Creates the eviction policy of a cache. */
  readonly eviction?: () => EvictionPolicy;
  readonly placement?: PlacementPolicy;
  readonly admission?: AdmissionPolicy;
}

const kinds = ['eviction', 'placement', 'admission'] as const satisfies readonly (keyof Policies)[];

/** @throws UsageError naming the file and what is wrong with it */
export async function readPolicies(path: string): Promise<Policies> {
  const given: Policies = await importFile(path);
  const refuse = (why: string) => new UsageError(`Cannot read the policies of ${path}: ${why}`);
  const unknown = Object.keys(given).find((name) => !kinds.some((kind) => kind === name));
  if (unknown !== undefined) throw refuse(`its export '${unknown}' is none of ${kinds.join(', ')}`);
  if (Object.keys(given).length === 0) throw refuse(`it exports none of ${kinds.join(', ')}`);
  for (const kind of kinds)
    if (given[kind] !== undefined && typeof given[kind] !== 'function') throw refuse(`'${kind}' is no function`);
  const rank: unknown = given.eviction?.().rank;
  if (given.eviction !== undefined && typeof rank !== 'function')
    throw refuse("'eviction' returns an object without a function 'rank'");
  return given;
}

async function importFile(path: string): Promise<Readonly<Record<string, never>>> {
  try {
    return { ...(await import(pathToFileURL(resolve(path)).href)) };
  } catch (error) {
    throw new UsageError(
      `Cannot read the policies of ${path}: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
}

/** The simulation with these policies in place of the named ones. */
export function withPolicies(config: SimulationConfig, { eviction, placement, admission }: Policies): SimulationConfig {
  return {
    ...config,
    instances:
      eviction === undefined
        ? config.instances
        : config.instances.map((spec) => ({ ...spec, machine: { ...spec.machine, eviction } })),
    placement: { ...config.placement, policy: placement },
    admission: { ...config.admission, policy: admission },
  };
}
