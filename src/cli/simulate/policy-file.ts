// `kvasir simulate --policy FILE`: eviction, placement, admission and batching order of a module beside the named ones.
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { EvictionPolicy, FutureUses } from '../../core/kvcache/eviction.ts';
import type { AdmissionPolicy } from '../../core/router/admission/admission-policy.ts';
import type { PlacementPolicy } from '../../core/router/placement/placement.ts';
import type { BatchingPolicy } from '../../core/scheduler/batching/batching-order.ts';
import type { SimulationConfig } from '../../sim/engine/simulation.ts';
import { UsageError } from '../usage-error.ts';

/** The exports of a policy file. What it lacks is decided as without it. */
export interface Policies {
  /** Creates the eviction policy of a cache. */
  readonly eviction?: () => EvictionPolicy;
  readonly placement?: PlacementPolicy;
  readonly admission?: AdmissionPolicy;
  readonly batching?: BatchingPolicy;
  /** `eviction` ranks blocks by their next uses: the workload is read twice. */
  readonly needsNextUses?: boolean;
}

const kinds = ['eviction', 'placement', 'admission', 'batching'] as const satisfies readonly (keyof Policies)[];

/** @throws UsageError naming the file and what is wrong with it */
export async function readPolicies(path: string): Promise<Policies> {
  const given: Policies = await importFile(path);
  const refuse = (why: string) => new UsageError(`Cannot read the policies of ${path}: ${why}`);
  const names = Object.keys(given).filter((name) => name !== 'needsNextUses');
  const unknown = names.find((name) => !kinds.some((kind) => kind === name));
  if (unknown !== undefined) throw refuse(`its export '${unknown}' is none of ${kinds.join(', ')}`);
  if (names.length === 0) throw refuse(`it exports none of ${kinds.join(', ')}`);
  for (const kind of kinds)
    if (given[kind] !== undefined && typeof given[kind] !== 'function') throw refuse(`'${kind}' is no function`);
  const { rank, order }: EvictionPolicy = given.eviction?.() ?? {};
  if (given.eviction !== undefined && typeof (rank ?? order) !== 'function')
    throw refuse("'eviction' returns an object without a function 'rank' or 'order'");
  return given;
}

/** @throws UsageError if the file exports no eviction policy */
export async function readEviction(path: string): Promise<() => EvictionPolicy> {
  const { eviction } = await readPolicies(path);
  if (eviction === undefined) throw new UsageError(`Cannot read the policies of ${path}: it exports no 'eviction'`);
  return eviction;
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

/**
 * The simulation with these policies in place of the named ones. @param futureUses of the workload, if `needsNextUses`
 */
export function withPolicies(
  config: SimulationConfig,
  { eviction, placement, admission, batching }: Policies,
  futureUses: FutureUses | undefined,
): SimulationConfig {
  return {
    ...config,
    instances: config.instances.map((spec) => {
      const { limits, ...machine } = spec.machine;
      const order = batching === undefined ? limits : { ...limits, order: batching };
      return {
        ...spec,
        machine: { ...machine, limits: order, futureUses, ...(eviction === undefined ? {} : { eviction }) },
      };
    }),
    placement: { ...config.placement, policy: placement },
    admission: { ...config.admission, policy: admission },
  };
}
