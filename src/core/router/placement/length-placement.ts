// Placement of simulated requests: the cost models of the instances predict prefills and transfers.

import { type HostLink, HostPrefill } from '../../cost/host-link.ts';
import { ModelPredictor } from '../../cost/model-predictor.ts';
import { ChunkedPrefill, type PrefillPredictor } from '../../cost/prefill.ts';
import type { StepCostModel } from '../../cost/roofline.ts';
import type { TransferEnd } from '../../cost/transfer-times.ts';
import type { PipelineSettings } from '../../pipeline/group.ts';
import { PipelinePredictor } from '../../pipeline/pipeline-predictor.ts';
import { type BatchLimits, backgroundLimits, shortPrefillUs } from '../../scheduler/batching/step-budget.ts';
import type { LengthRequest } from '../../scheduler/executor/length-request.ts';
import type { BatchJobsConfig } from '../conductor-config.ts';
import type { PlacementSettings } from './placement.ts';
import type { PlacerConfig } from './placer.ts';

/** The models of an instance that placement uses. */
interface Machine {
  readonly cost: StepCostModel;
  readonly blockTokens: number;
  readonly limits: BatchLimits;
  readonly hostLink?: HostLink | undefined;
  readonly aheadOfUse?: boolean | undefined;
}

/** Initial size of the prefix index, in blocks: a small table is fast, and it grows. */
const indexedBlocks = 2 ** 15;
/** Number of evicted blocks that the index remembers, to distinguish evicted blocks from those never seen. */
const rememberedBlocks = 1_000_000;

/** Batch jobs may fill the smallest share of memory that any instance grants them. */
export function lengthJobs(instances: readonly { readonly machine: Pick<Machine, 'limits'> }[]): BatchJobsConfig {
  const shares = instances.map(({ machine }) => (machine.limits.background ?? backgroundLimits).memoryShare);
  return { memoryShare: Math.min(...shares) };
}

/** Instances with one cost model share one predictor. */
export function lengthPlacement(
  settings: PlacementSettings,
  instances: readonly {
    readonly machine: Machine;
    readonly nic: TransferEnd;
    readonly ssd?: { readonly readBytesPerSecond: number } | undefined;
  }[],
  linkBytesPerSecond: number | undefined,
  pipeline?: PipelineSettings,
): PlacerConfig<LengthRequest> {
  const predictors = new Map<StepCostModel | HostLink, PrefillPredictor>();
  for (const { machine } of instances) {
    const { cost, hostLink, limits } = machine;
    if (predictors.has(hostLink ?? cost)) continue;
    const prefill = new ChunkedPrefill(new ModelPredictor(cost), limits.tokensMax);
    predictors.set(hostLink ?? cost, hostLink === undefined ? prefill : new HostPrefill(prefill, hostLink));
  }
  const [
    {
      machine: { blockTokens, cost, limits, hostLink },
    },
  ] = instances;
  const sharesByTenant = limits.order === undefined || limits.order === 'tokens';
  return {
    ...settings,
    blockTokens,
    prompts: {
      chainOf: ({ chain }) => chain,
      priorityOf: ({ trace }) => trace.priority ?? 0,
      tenantOf: ({ trace }) => (sharesByTenant ? (trace.tenant ?? '') : ''),
      mayPipeline: ({ trace }) => pipeline?.budgetByDefault !== true || trace.kvBudget === 'full',
    },
    transfers: { ends: instances.map(({ nic }) => nic), linkBytesPerSecond, bytesPerToken: cost.kvBytesPerToken },
    stepUs: () =>
      Math.min(
        limits.stepUsPrefill,
        (predictors.get(hostLink ?? cost) as PrefillPredictor).prefillUs(limits.tokensMax, 0),
      ),
    ssds: {
      ends: instances.map(({ ssd }) => ({ ssdBytesPerSecond: ssd?.readBytesPerSecond })),
      bytesPerToken: cost.kvBytesPerToken,
    },
    aheadRows: instances.every(({ machine }) => machine.aheadOfUse === true) ? limits.tokensMax : undefined,
    predictors: instances.map(
      ({ machine: { cost, hostLink } }) => predictors.get(hostLink ?? cost) as PrefillPredictor,
    ),
    pipeline: pipeline && { ...pipeline, prefills: groupPrefills(instances, linkBytesPerSecond) },
    blocks: indexedBlocks,
    rememberedBlocks,
  };
}

/** (instances): instances with one cost model are taken to have equal NICs too. */
function groupPrefills(
  instances: readonly { readonly machine: Pick<Machine, 'cost' | 'limits'>; readonly nic: TransferEnd }[],
  linkBytesPerSecond = Number.POSITIVE_INFINITY,
): readonly PipelinePredictor[] {
  return instances.map(({ machine: { cost, limits }, nic }) => {
    const bytesPerUs = Math.min(nic.bytesPerSecond, linkBytesPerSecond) / 1e6;
    const hopUs = (tokens: number) => nic.us + (tokens * cost.activationBytesPerToken) / bytesPerUs;
    return new PipelinePredictor({
      ...{ steps: new ModelPredictor(cost), layers: cost.layers, hopUs },
      ...{ chunkTokensMax: limits.tokensMax, othersUs: shortPrefillUs(limits) },
    });
  });
}
