// What an instance with an engine puts into one step.
import { backgroundLimits } from '../batching/step-budget.ts';

/** Rows of a step: more gains nothing, because kernels work in tiles of far fewer. */
const tokensMax = 1024;
const sequencesMax = 128;

export const batchLimits = {
  tokensMax,
  sequencesMax,
  /** Some above the running sequences, for rows that score prompts. */
  logitRowsMax: sequencesMax + 64,
  /** Predicted time of a step: where others decode, prefill must not hold up their tokens. */
  stepUsDecoding: 50_000,
  stepUsPrefill: 100_000,
  background: backgroundLimits,
};
