// Chooses the degree of parallelism (a, b): devices of model workers and of attention workers (Lamina, section 4).

import { largestWithin } from '../cost/micro-batches.ts';
import type { StepCostModel } from '../cost/roofline.ts';
import { decodeShape } from '../protocol/step-shape.ts';
import type { AttentionWorkersCost, StepParts } from './attention-worker-cost.ts';

/** An instance that could be built. Its cost model has the curves t_m(B) and t_a(B, l), the network and the memory. */
export interface DopCandidate {
  readonly modelDevices: number;
  readonly attentionDevices: number;
  /** Staggered batches n. */
  readonly batches: number;
  readonly cost: AttentionWorkersCost;
  readonly pricePerHour: number;
}

export interface DopLimits {
  /** Mean tokens of a sequence while it decodes. */
  readonly contextTokens: number;
  /** Maximum time of a step, in which every sequence advances by a token. */
  readonly tbtUsMax: number;
  readonly sequencesMax: number;
  /** Share of a batch's time that the bytes on the network may add, for the minimum bandwidth. */
  readonly alpha: number;
}

/** A candidate with its largest batch within memory and TBT. */
export interface DopChoice extends DopCandidate {
  /** Sequences in all staggered batches. */
  readonly sequences: number;
  readonly parts: StepParts;
  readonly tokensPerSecond: number;
  /** Tokens for a unit of the price. */
  readonly tokensPerPrice: number;
  /** Of each NIC. */
  readonly bytesPerSecondMin: number;
}

export type DopObjective = 'throughput' | 'cost';

/**
 * All candidates that can decode within the TBT: the most tokens per second first, or the most for the price. Equal ones
 * keep their order.
 */
export function planDop<C extends DopCandidate>(
  candidates: readonly C[],
  limits: DopLimits,
  objective: DopObjective,
): readonly (C & DopChoice)[] {
  const choices = candidates
    .map((candidate) => largestBatch(candidate, limits))
    .filter((choice) => choice !== undefined);
  const value = (choice: DopChoice) => (objective === 'throughput' ? choice.tokensPerSecond : choice.tokensPerPrice);
  return choices.sort((a, b) => value(b) - value(a));
}

/** Most sequences that fit into the KV memory and decode within the TBT. */
export function largestDecodeBatch(
  cost: Pick<StepCostModel, 'stepUs' | 'kvCapacityTokens'>,
  { contextTokens, tbtUsMax, sequencesMax }: Omit<DopLimits, 'alpha'>,
): number {
  const inMemory = Math.min(sequencesMax, Math.floor(cost.kvCapacityTokens / contextTokens));
  return largestWithin(inMemory, (n) => cost.stepUs(decodeShape(n, n * contextTokens)) <= tbtUsMax);
}

/** Throughput rises with the batch, so the largest one is the best. Undefined: one sequence exceeds memory or TBT. */
function largestBatch<C extends DopCandidate>(candidate: C, limits: DopLimits): (C & DopChoice) | undefined {
  const { cost, pricePerHour } = candidate;
  const { contextTokens, alpha } = limits;
  const shapeOf = (sequences: number) => decodeShape(sequences, sequences * contextTokens);
  const sequences = largestDecodeBatch(cost, limits);
  if (sequences === 0) return undefined;
  const parts = cost.parts(shapeOf(sequences));
  const tokensPerSecond = (sequences * 1e6) / parts.stepUs;
  return {
    ...candidate,
    sequences,
    parts,
    tokensPerSecond,
    tokensPerPrice: (tokensPerSecond * 3600) / pricePerHour,
    bytesPerSecondMin: cost.bytesPerSecondMin(shapeOf(sequences), alpha),
  };
}
