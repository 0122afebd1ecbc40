// An instance without an engine, for simulators: its steps are only timed.

import type { HostLink } from '../cost/host-link.ts';
import { ModelPredictor } from '../cost/model-predictor.ts';
import type { StepCostModel } from '../cost/roofline.ts';
import { StepCost } from '../cost/step-cost.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import { LengthExecutor, type LengthResult, type ServedLengths } from '../scheduler/executor/length-executor.ts';
import type { LengthRequest } from '../scheduler/executor/length-request.ts';
import { Instance } from '../scheduler/instance.ts';
import { createComponents, instanceConfig, type ServingComponents, type ServingConfig } from './components.ts';

/** What an instance without an engine hears. */
export type LengthEvent = InstanceEvent<LengthRequest, LengthResult>;

export type LengthEffect = InstanceEffect<undefined, LengthRequest>;

/** An instance whose steps are only timed. */
export type LengthInstance = Instance<
  LengthRequest,
  ServedLengths,
  undefined,
  LengthResult,
  ServingComponents<LengthRequest, ServedLengths>
>;

export interface LengthInstanceConfig
  extends Pick<
    ServingConfig,
    | 'blockTokens'
    | 'eviction'
    | 'limits'
    | 'queueMax'
    | 'handOff'
    | 'pinShare'
    | 'reportUs'
    | 'tiers'
    | 'borrowing'
    | 'migration'
    | 'fates'
    | 'keeps'
    | 'stores'
    | 'startsAhead'
    | 'rowsHeld'
    | 'witness'
  > {
  readonly cost: StepCostModel;
  /** Which start of the instance it is; 0 unless given. */
  readonly incarnation?: number;
  /** Blocks of KV; by the memory of the cost model unless given. */
  readonly blocks: number | undefined;
  /** Between the devices and host memory, where blocks are kept there. */
  readonly hostLink?: HostLink | undefined;
  /** Equal steps run in one go. */
  readonly coalesce: boolean;
  /** Every token is told, and with it what the cache has stored and dropped, as by an instance with an engine; else the first one alone. */
  readonly tellsAll?: boolean;
  /** It knows nothing of its cost model, and predicts steps as one with an engine does: by those that ran. */
  readonly learns?: boolean;
}

export function createLengthInstance({
  cost,
  blocks,
  coalesce,
  tellsAll = false,
  learns = false,
  ...config
}: LengthInstanceConfig): LengthInstance {
  const machine: ServingConfig = {
    ...config,
    pages: blocks ?? Math.floor(cost.kvCapacityTokens / config.blockTokens),
    // Only tokens count here: one layer stands for all.
    groups: [{ layers: 1, window: undefined }],
    cost: learns ? new StepCost(cost.layers) : new ModelPredictor(cost),
    journalIncarnation: config.incarnation ?? 0,
  };
  return new Instance(
    instanceConfig(machine),
    (context) => createComponents(context, machine),
    () => new LengthExecutor({ coalesce, tellsAll }),
  );
}
