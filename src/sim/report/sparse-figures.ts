// Figures of sparse KV: tokens that sparse layers kept, the pages of each layer, and the time of selections.

import { blocksFor } from '../../core/kvcache/layer-groups.ts';
import { layerBudgets } from '../../core/kvcache/sparsity/budgets.ts';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';
import { slotsNeeded } from '../../util/step.ts';
import type { SimulatedExecutor } from '../engine/executor.ts';
import type { InstanceSpec } from '../engine/simulation-config.ts';

export interface SparseFigures {
  /** Prompts that selected the tokens to keep. */
  readonly selections: number;
  /** Mean of such a prompt, and of the tokens that a sparse layer kept of it. */
  readonly promptTokensMean: number;
  readonly keptTokensMean: number;
  /** Of a sequence with the mean prompt, when it is selected. */
  readonly pagesByLayer: readonly number[];
  /** Pages of all layers together, and of the same sequence without sparse layers. */
  readonly pages: number;
  readonly fullPages: number;
  readonly selectionMs: number;
  /** Mean of a selection. */
  readonly selectionMsMean: number;
  /** Share of the KV of their contexts that decode rows read; a bound of a page counts as a token. */
  readonly readShare: number;
}

/** Sums over the steps of an instance. */
type StepSums = Pick<SimulatedExecutor, 'selectionUs' | 'decodeKeys' | 'decodeKeysRead'>;

/** Undefined if no instance has sparse layers. */
export function sparseFigures(
  specs: readonly InstanceSpec[],
  snapshots: readonly InstanceSnapshot[],
  steps: readonly StepSums[],
): SparseFigures | undefined {
  const machine = specs.find((spec) => spec.machine.sparsity !== undefined)?.machine;
  if (machine?.sparsity === undefined) return undefined;
  const { sparsity, cost, blockTokens } = machine;
  const sparse = snapshots.flatMap((snapshot) => snapshot.sparse ?? []);
  const sum = (of: (figures: (typeof sparse)[number]) => number) =>
    sparse.reduce((total, figures) => total + of(figures), 0);
  const selections = sum((figures) => figures.selections);
  const ofSteps = (name: keyof StepSums) => steps.reduce((total, each) => total + each[name], 0);
  const selectionUs = ofSteps('selectionUs');
  const { sparseLayers } = sparsity;
  const layers = sparseLayers.filter((isSparse) => isSparse).length;
  const mean = (tokens: number) => (selections === 0 ? 0 : tokens / selections / layers);
  const promptTokensMean = mean(sum((figures) => figures.promptTokens));
  const blocks = blocksFor(promptTokensMean, blockTokens);
  const { slots } = layerBudgets({ ...sparsity, budget: sparsity.budget ?? 0, layers }, Math.round(promptTokensMean));
  const slotPages = [...slots].map((budget) => blocksFor(slotsNeeded(budget, sparsity.compactEvery), blockTokens));
  let next = 0;
  const pagesByLayer = sparseLayers.map((isSparse) => (isSparse && selections > 0 ? slotPages[next++] : blocks));
  return {
    selections,
    promptTokensMean,
    keptTokensMean: mean(sum((figures) => figures.keptTokens)),
    pagesByLayer,
    pages: pagesByLayer.reduce((total, pages) => total + pages, 0),
    fullPages: blocks * cost.layers,
    selectionMs: selectionUs / 1000,
    selectionMsMean: selections === 0 ? 0 : selectionUs / 1000 / selections,
    readShare: ofSteps('decodeKeysRead') / Math.max(1, ofSteps('decodeKeys')),
  };
}
