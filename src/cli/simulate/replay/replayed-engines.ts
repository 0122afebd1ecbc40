// The external engines of a recording: machines that schedule without a bound on step times, as vLLM and SGLang do.

import { z } from 'zod';
import { batchLimits } from '../../../core/scheduler/executor/token-limits.ts';
import { ExternalEngines } from '../../../sim/engine/external-engines.ts';
import { LearnedCost } from '../../../sim/engine/learned-cost.ts';
import type { InstanceSpec, SimulationConfig } from '../../../sim/engine/simulation.ts';
import type { Recording } from '../../../trace/recording/reader.ts';
import type { RecordedInstance } from '../../../trace/recording/recording.ts';
import { clusterFields, instanceSpecs } from '../../options/cluster-options.ts';
import { defaultChunkTokens } from '../../options/cost-model.ts';
import { readOptions } from '../../options/options.ts';
import { readSimulatedFleet } from '../../serve/fleet/fleet-file.ts';
import { UsageError } from '../../usage-error.ts';
import type { ReplaySettings } from './replay-settings.ts';

const sequencesMax = 256;
/** Without a hand-off the rate has no effect. */
const bytesPerSecondMax = 1e15;

const unboundedUs = Number.MAX_SAFE_INTEGER;
const unbounded = {
  ...batchLimits,
  ...{ tokensMax: defaultChunkTokens, logitRowsMax: sequencesMax + 1, sequencesMax },
  ...{ stepUsDecoding: unboundedUs, stepUsPrefill: unboundedUs, stepUsAlone: unboundedUs },
};

/** @param specs of the instances, with their step times @throws UsageError for tables that fit no engine */
export function replayedEngines(
  recording: Recording,
  { engines }: ReplaySettings,
  specs: readonly InstanceSpec[],
): Pick<SimulationConfig, 'instances' | 'external'> {
  const { header, instances } = recording;
  const machineOf = engines && measuredMachines(engines, header.blockTokens);
  const bytesPerSecond = handOffRate(recording);
  const own = instances.map((instance, i): InstanceSpec => {
    const { nic = { bytesPerSecond, us: 0 }, machine = specs[i].machine } = machineOf?.(instance) ?? {};
    const { cost, limits } = machineOf === undefined ? { cost: machine.cost, limits: unbounded } : machine;
    const { blocks, blockTokens, eviction } = specs[i].machine;
    const receiveTokens = (blocks ?? 0) * blockTokens;
    return {
      ...{ role: instance.role, nic },
      machine: {
        ...{ cost, limits, blocks, blockTokens, eviction, coalesce: false, reportsAll: true },
        // Predictions would take the times of recorded steps that have not run.
        learns: machineOf === undefined,
        ignoresPriorities: instance.takesPriorities !== true,
        // A recorded hand-off begins when the prefill engine has answered.
        handOff: { layerWise: machineOf !== undefined, rechecksAdmission: false, receiveTokens },
      },
    };
  });
  const { kvTokenBytes: kvBytesPerToken, layers } = header;
  const steps = specs.map(({ machine: { cost } }) => {
    const { kvCapacityTokens, activationBytesPerToken } = cost;
    return new LearnedCost({ layers, kvBytesPerToken, kvCapacityTokens, activationBytesPerToken });
  });
  return { instances: own, external: new ExternalEngines(own.length, steps) };
}

/** The machine that a fleet file states for an engine of this name, or for all if it has one alone. */
function measuredMachines(
  { fleet, tables, model }: NonNullable<ReplaySettings['engines']>,
  blockTokens: number,
): (instance: RecordedInstance) => InstanceSpec {
  const options = readOptions(z.object(clusterFields), { fleet, tables, model, blockTokens });
  const specs = instanceSpecs(options, false);
  const names = readSimulatedFleet(fleet).map(({ name }) => name);
  return ({ name }) => {
    // A data-parallel rank is named by its engine.
    const place = names.length === 1 ? 0 : names.indexOf(name.replace(/#\d+$/, ''));
    if (place < 0) throw new UsageError(`Cannot replay: ${fleet} has no engine ${name}`);
    return specs[place];
  };
}

/** Median rate at which the prompts of hand-offs become ready to decode; their own bytes do not pass the gateway. */
function handOffRate({ header: { kvTokenBytes }, requests }: Recording): number {
  const rates = requests.flatMap(({ request: { inputTokens }, recorded }) => {
    const { instance, decodeInstance, prefilledMs, firstTokenMs } = recorded;
    if (prefilledMs === undefined || firstTokenMs === undefined || instance === decodeInstance) return [];
    return [(1000 * inputTokens * kvTokenBytes) / Math.max(0.001, firstTokenMs - prefilledMs)];
  });
  rates.sort((a, b) => a - b);
  return rates[rates.length >> 1] ?? bytesPerSecondMax;
}
