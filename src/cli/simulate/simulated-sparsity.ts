// Options of simulated sparse KV: layers and budgets, step times, and combinations that are refused.
import { z } from 'zod';
import type { StepCostModel } from '../../core/cost/roofline.ts';
import { SparseCost } from '../../core/cost/sparse-cost.ts';
import type { KvBudget, LayeredSparsity } from '../../core/kvcache/sparsity/sparse-plan.ts';
import { slotPagesOfState } from '../../util/step.ts';
import { type CostOptions, createCostModel, instanceShape } from '../options/cost-model.ts';
import {
  budgetShape,
  type SparseOptions,
  sparseConflict,
  sparseFields,
  sparseLayers,
  sparseSettings,
} from '../options/sparse-options.ts';
import { UsageError } from '../usage-error.ts';
import { type AttentionWorkerSettings, attentionWorkersCost, dopOf } from './simulated-attention-workers.ts';

/** '1000', 'full', or several to compare: 'full,1000'. */
const budgets = z
  .union([z.array(z.union([z.number(), z.string()])), z.number(), z.string()])
  .transform((given) => (typeof given === 'string' ? given.split(',') : [given].flat()))
  .transform((given): readonly KvBudget[] => given.map((text) => (text === 'full' ? 'full' : Number(text))))
  .refine(
    (all) => all.every((budget) => budget === 'full' || (Number.isInteger(budget) && budget > 0)),
    'write 1000, full, or several: full,1000,2000',
  );

export const simulatedSparsityFields = { ...sparseFields, sparseBudget: budgets.optional() };

interface SparsityOptions extends Omit<SparseOptions, 'sparseBudget'> {
  readonly sparseBudget?: readonly KvBudget[] | undefined;
}

interface Combined extends SparsityOptions {
  readonly decodeOnly: boolean;
  readonly standby: number;
  readonly borrow: boolean;
  readonly cppGroup?: number | undefined;
}

/** Refuses combinations that simulated instances with sparse layers do not have. @throws UsageError */
export function refuseWithSparsity(options: Combined): void {
  const { sparse, sparseBudget = [], sparseTopP } = options;
  if (sparse === undefined && sparseBudget.length > 0)
    throw new UsageError('Cannot use --sparse-budget: it needs --sparse');
  if (sparse === undefined) return;
  if (sparseBudget.length > 1)
    throw new UsageError(`Cannot use --sparse-budget ${sparseBudget.join(',')}: to compare budgets, state --clients`);
  const conflicts: readonly (readonly [boolean, string])[] = [
    [sparseTopP !== undefined, 'the pages that reach a mass depend on values: remove --sparse-top-p'],
    [options.decodeOnly, 'prompts must be computed to choose tokens: remove --decode-only'],
    [options.standby > 0, 'kept tokens do not migrate: remove --standby'],
  ];
  const conflict = conflicts.find(([applies]) => applies)?.[1] ?? sparseConflict(options);
  if (conflict !== undefined) throw new UsageError(`Cannot use --sparse ${sparse}: ${conflict}`);
}

/** Undefined: every layer keeps all tokens. @throws UsageError if the options do not fit the model */
export function simulatedSparsity(
  { sparseBudget, ...options }: SparsityOptions,
  { layers, headDim }: { readonly layers: number; readonly headDim: number },
): LayeredSparsity | undefined {
  const [given] = sparseBudget ?? [];
  const settings = sparseSettings({ ...options, sparseBudget: given === 'full' ? undefined : given });
  if (settings === undefined) return undefined;
  if (settings.shape !== 'list' && given === undefined)
    throw new UsageError(`Cannot use --sparse ${options.sparse}: state the tokens to keep with --sparse-budget`);
  return {
    ...settings,
    shape: budgetShape(settings),
    sparseLayers: sparseLayers(settings, layers),
    slotPagesOfState: slotPagesOfState(headDim, 'bf16'),
  };
}

/** Step times of an instance with sparse layers whose attention workers select kept tokens. */
export function sparseWorkersCost(options: AttentionWorkerSettings & { readonly dop: string }): StepCostModel {
  const { attentionHardware: hardware = options.hardware, partition, dop } = options;
  const { device, shape, efficiency } = instanceShape({ ...options, hardware, tp: 1 });
  // All workers score the heads of a sequence, or one of them scores the whole sequence.
  const tensorParallel = partition === 'heads' ? dopOf(dop).attentionDevices : 1;
  const attention = { ...shape, device, tensorParallel, efficiency };
  return new SparseCost(attentionWorkersCost(options), attention);
}

/** Step times of an instance with sparse layers. */
export function sparseCostModel(options: CostOptions): StepCostModel {
  const { device, shape, efficiency } = instanceShape(options);
  return new SparseCost(createCostModel(options), { ...shape, device, efficiency });
}
