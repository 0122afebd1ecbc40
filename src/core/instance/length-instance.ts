// An instance without an engine, for simulators: its steps are only timed.

import { CreditorSteps } from '../cost/creditor-steps.ts';
import type { HostLink } from '../cost/host-link.ts';
import { ModelPredictor } from '../cost/model-predictor.ts';
import type { StepCostModel } from '../cost/roofline.ts';
import { StepCost } from '../cost/step-cost.ts';
import type { LayeredSparsity } from '../kvcache/sparsity/sparse-plan.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import { LengthExecutor, type LengthResult, type RunningLengths } from '../scheduler/executor/length-executor.ts';
import type { LengthRequest } from '../scheduler/executor/length-request.ts';
import { Instance } from '../scheduler/instance.ts';
import { createComponents, instanceConfig, type ServingComponents, type ServingConfig } from './components.ts';

/** Events of an instance without an engine. */
export type LengthEvent = InstanceEvent<LengthRequest, LengthResult>;

export type LengthEffect = InstanceEffect<undefined, LengthRequest>;

export type LengthInstance = Instance<
  LengthRequest,
  RunningLengths,
  undefined,
  LengthResult,
  ServingComponents<LengthRequest, RunningLengths>
>;

export interface LengthInstanceConfig
  extends Pick<
    ServingConfig,
    | 'blockTokens'
    | 'eviction'
    | 'futureUses'
    | 'limits'
    | 'queueMax'
    | 'handOff'
    | 'pinShare'
    | 'reportUs'
    | 'tiers'
    | 'borrowing'
    | 'migration'
    | 'attentionWorkers'
    | 'messageCounts'
    | 'isStore'
    | 'stores'
    | 'aheadOfUse'
    | 'isBackpressured'
    | 'blockListener'
  > {
  readonly cost: StepCostModel;
  /** Incarnation of the instance; 0 by default. */
  readonly incarnation?: number;
  /** Blocks of the KV pool; undefined: as many as the memory of the cost model holds. */
  readonly blocks: number | undefined;
  /** The link between devices and host memory, where blocks are cached there. */
  readonly hostLink?: HostLink | undefined;
  /** Equal steps run at once. */
  readonly coalesce: boolean;
  /** Every token is reported, and KV events with it, as by an instance with an engine; else the first token only. */
  readonly reportsAll?: boolean;
  /** All requests are of one priority, whatever they state: an engine that does not schedule by it. */
  readonly ignoresPriorities?: boolean | undefined;
  /** Requests arrive with the KV of their prompts: nothing is prefilled, except after a preemption. */
  readonly decodeOnly?: boolean | undefined;
  /** Undefined: requests keep all tokens in every layer. */
  readonly sparsity?: LayeredSparsity | undefined;
  /** Steps are predicted from steps that ran, as with an engine, and not by the cost model. */
  readonly learns?: boolean;
}

export function createLengthInstance({
  cost,
  blocks,
  coalesce,
  reportsAll = false,
  ignoresPriorities = false,
  decodeOnly = false,
  learns = false,
  sparsity,
  ...config
}: LengthInstanceConfig): LengthInstance {
  const machine: ServingConfig = {
    ...config,
    ...memoryOf(blocks ?? Math.floor(cost.kvCapacityTokens / config.blockTokens), cost.layers, sparsity),
    cost: new CreditorSteps(learns ? new StepCost(cost.layers) : new ModelPredictor(cost)),
    incarnation: config.incarnation ?? 0,
  };
  return new Instance(
    instanceConfig(machine),
    (context) => createComponents(context, machine),
    (_pools, { sparseKv }) =>
      new LengthExecutor({ coalesce, reportsAll, ignoresPriorities, decodeOnly, sparse: sparseKv?.plan }),
  );
}

/** Layer groups, and the pages of so many blocks. */
function memoryOf(blocks: number, layers: number, sparsity: LayeredSparsity | undefined) {
  // Only tokens count: one layer stands for all.
  if (sparsity === undefined) return { pages: blocks, groups: [{ layers: 1, window: undefined }] };
  const { sparseLayers, ...config } = sparsity;
  const fullLayers = sparseLayers.filter((isSparse) => !isSparse).length;
  const sparse = { layers: layers - fullLayers, window: undefined, sparse: true };
  const groups = fullLayers === 0 ? [sparse] : [{ layers: fullLayers, window: undefined }, sparse];
  return { pages: blocks * layers, groups, sparsity: config };
}
