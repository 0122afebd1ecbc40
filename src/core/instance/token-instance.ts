// An instance with an engine: token ids in, engine steps out.

import { pageTokens, type Step, type StepResult } from '../../util/step.ts';
import { StepCost } from '../cost/step-cost.ts';
import type { GenerationRequest } from '../protocol/ports.ts';
import type { Sequence } from '../scheduler/batching/sequence.ts';
import type { ServedRequest } from '../scheduler/executor/generation-request.ts';
import { type BorrowedKeys, StepBuilder } from '../scheduler/executor/step-builder.ts';
import { TokenExecutor, type TokenExecutorConfig } from '../scheduler/executor/token-executor.ts';
import { Instance } from '../scheduler/instance.ts';
import type { InstanceConfig } from '../scheduler/instance-config.ts';

export interface TokenInstanceConfig extends Omit<InstanceConfig, 'blockTokens' | 'cost'>, TokenExecutorConfig {
  /** Where instances that lend have their guest rooms: wanted for `borrowing`. */
  readonly roomOf?: BorrowedKeys['roomOf'] | undefined;
}

/** An instance that an engine stands behind. */
export type TokenInstance = Instance<GenerationRequest, ServedRequest, Step, StepResult>;

export function createTokenInstance(config: TokenInstanceConfig): TokenInstance {
  const layers = config.groups.reduce((sum, group) => sum + group.layers, 0);
  return new Instance({ ...config, blockTokens: pageTokens, cost: new StepCost(layers) }, (pools, borrower) => {
    const { limits, roomOf } = config;
    const layoutOf = (sequence: Sequence) => borrower?.layoutOf(sequence);
    return new TokenExecutor(config, new StepBuilder(limits, pools, roomOf && { layoutOf, roomOf }));
  });
}
