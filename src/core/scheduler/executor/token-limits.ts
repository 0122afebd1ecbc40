// Limits of a step of an instance with an engine.

import { type BatchLimits, backgroundLimits } from '../batching/step-budget.ts';

/** More rows are no faster: kernels work in much smaller tiles. */
const tokensMax = 1024;
const sequencesMax = 128;

export const batchLimits = {
  tokensMax,
  sequencesMax,
  /** More than the running sequences, for rows that score prompts. */
  logitRowsMax: sequencesMax + 64,
  /** Maximum predicted time of a step: shorter if prefill would delay the tokens of decoding requests. */
  stepUsDecoding: 50_000,
  stepUsPrefill: 100_000,
  /** A split costs a lone prompt more than its wait costs the next request. */
  stepUsAlone: 300_000,
  background: backgroundLimits,
};

/** Limits of an encoder: a step has whole prompts, and hidden states of all their rows. */
export function encoderLimits(limits: BatchLimits, contextTokens: number): BatchLimits {
  const rows = Math.max(tokensMax, contextTokens);
  return { ...limits, tokensMax: rows, logitRowsMax: sequencesMax + rows, scoredRows: rows };
}

/** @param stepUs maximum predicted time of a step that decodes and prefills; undefined: the default */
export function batchLimitsWith(stepUs: number | undefined): BatchLimits {
  if (stepUs === undefined) return batchLimits;
  const { stepUsPrefill, stepUsAlone } = batchLimits;
  return {
    ...batchLimits,
    stepUsDecoding: stepUs,
    stepUsPrefill: Math.max(stepUsPrefill, stepUs),
    stepUsAlone: Math.max(stepUsAlone, stepUs),
  };
}
