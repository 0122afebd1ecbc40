// An instance with an engine: token ids in, engine steps out.

import { pageTokens, type Step, type StepResult } from '../../util/step.ts';
import { CreditorSteps } from '../cost/creditor-steps.ts';
import { StepCost } from '../cost/step-cost.ts';
import type { GenerationRequest } from '../protocol/ports.ts';
import type { Sequence } from '../scheduler/batching/sequence.ts';
import type { RunningGeneration } from '../scheduler/executor/generation-request.ts';
import { type BorrowedKeys, StepBuilder } from '../scheduler/executor/step-builder.ts';
import { TokenExecutor, type TokenExecutorConfig } from '../scheduler/executor/token-executor.ts';
import { Instance } from '../scheduler/instance.ts';
import { createComponents, instanceConfig, type ServingComponents, type ServingConfig } from './components.ts';

export interface TokenInstanceConfig extends Omit<ServingConfig, 'blockTokens' | 'cost'>, TokenExecutorConfig {
  /** The remote attention servers of creditors; required for `borrowing`. */
  readonly serverOf?: BorrowedKeys['serverOf'] | undefined;
}

export type TokenInstance = Instance<
  GenerationRequest,
  RunningGeneration,
  Step,
  StepResult,
  ServingComponents<GenerationRequest, RunningGeneration>
>;

export function createTokenInstance(config: TokenInstanceConfig): TokenInstance {
  const layers = config.groups.reduce((sum, group) => sum + group.layers, 0);
  const machine = { ...config, blockTokens: pageTokens, cost: new CreditorSteps(new StepCost(layers)) };
  return new Instance(
    instanceConfig(machine),
    (context) => createComponents(context, machine),
    (pools, { borrower, sparseKv }, { pageTables }) => {
      const { limits, serverOf } = config;
      const layoutOf = (sequence: Sequence) => borrower?.layoutOf(sequence);
      const borrowed = serverOf && { layoutOf, serverOf };
      const builder = new StepBuilder(limits, pools, borrowed, pageTables, sparseKv?.plan);
      return new TokenExecutor(config, builder, sparseKv?.plan);
    },
  );
}
