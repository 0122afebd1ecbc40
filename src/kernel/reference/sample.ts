// Sampling and log-probabilities of one row of logits, in the order that util/step.ts fixes.
import { counterUniform } from '../../util/counter-random.ts';
import { maskWords, rowFailures, type StepResult, type StepSampling, topLogprobsMax } from '../../util/step.ts';

export function emptyResult(rows: number): StepResult {
  return {
    tokens: new Int32Array(rows),
    logprobs: new Float32Array(rows),
    topTokens: new Int32Array(rows * topLogprobsMax),
    topLogprobs: new Float32Array(rows * topLogprobsMax),
    failed: new Uint8Array(rows),
    failedSequences: new Int32Array(0),
  };
}

/** Fills entry `row` of the result. */
export function sampleRow(logits: Float32Array, sampling: StepSampling, row: number, result: StepResult): void {
  const max = finiteMaximum(logits);
  const adjusted = adjustedLogits(logits, sampling, row);
  const masked = excludeMasked(adjusted, sampling, row);
  if (max === undefined || finiteMaximum(adjusted) === undefined) {
    const noToken = max !== undefined && masked && !adjusted.some(Number.isNaN);
    result.failed[row] = noToken ? rowFailures.noToken : rowFailures.notFinite;
    return;
  }
  const logSum = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - max), 0)) + max;
  const alternatives = Math.min(sampling.topLogprobs[row], topLogprobsMax, logits.length);
  if (alternatives > 0) {
    ranked(logits)
      .subarray(0, alternatives)
      .forEach((token, rank) => {
        result.topTokens[row * topLogprobsMax + rank] = token;
        result.topLogprobs[row * topLogprobsMax + rank] = logits[token] - logSum;
      });
  }
  const token = sampling.hasTarget[row] ? sampling.target[row] : choose(adjusted, sampling, row);
  result.tokens[row] = token;
  result.logprobs[row] = logits[token] - logSum;
}

/** undefined if a value is NaN or none is finite. */
function finiteMaximum(values: Float32Array | Float64Array): number | undefined {
  let max = -Infinity;
  for (const value of values) {
    if (Number.isNaN(value)) return undefined;
    if (value > max) max = value;
  }
  return Number.isFinite(max) ? max : undefined;
}

/** Token ids by value descending, then id ascending. */
function ranked(values: Float32Array | Float64Array): Int32Array {
  const ids = Int32Array.from({ length: values.length }, (_, id) => id);
  return ids.sort((a, b) => values[b] - values[a] || a - b);
}

function adjustedLogits(logits: Float32Array, sampling: StepSampling, row: number): Float64Array {
  const values = Float64Array.from(logits);
  const repetition = sampling.repetitionPenalty[row];
  for (let i = sampling.seenStart[row]; i < sampling.seenStart[row + 1]; i++) {
    const token = sampling.seenTokens[i];
    const count = sampling.seenCounts[i];
    const value = values[token];
    const repeated = value > 0 ? value / repetition : value * repetition;
    const presence = count > 0 ? sampling.presencePenalty[row] : 0;
    values[token] = repeated - sampling.frequencyPenalty[row] * count - presence;
  }
  for (let i = sampling.biasStart[row]; i < sampling.biasStart[row + 1]; i++) {
    const token = sampling.biasTokens[i];
    values[token] = values[token] + sampling.biasValues[i];
  }
  return values;
}

/** False if the row has no mask. */
function excludeMasked(values: Float64Array, { masks }: StepSampling, row: number): boolean {
  if (masks === undefined || masks.start[row + 1] === masks.start[row]) return false;
  const words = masks.words.subarray(masks.start[row], masks.start[row + 1]);
  if (words.length !== maskWords(values.length))
    throw new RangeError(`Cannot sample: a mask has ${words.length} words`);
  for (let id = 0; id < values.length; id++)
    if (((words[id >>> 5] >>> (id & 31)) & 1) === 0) values[id] = Number.NEGATIVE_INFINITY;
  return true;
}

function choose(values: Float64Array, sampling: StepSampling, row: number): number {
  const temperature = sampling.temperature[row];
  let best = 0;
  for (let id = 1; id < values.length; id++) if (values[id] > values[best]) best = id;
  if (temperature === 0) return best;
  const max = values[best];
  const weights = values.map((value) => Math.exp((value - max) / temperature));
  const kept = keptTokens(values, weights, sampling, row);
  const mass = kept.reduce((sum, id) => sum + weights[id], 0);
  const target = counterUniform(sampling.seed[2 * row], sampling.seed[2 * row + 1], sampling.tokenIndex[row]) * mass;
  let running = 0;
  for (const id of kept) {
    running += weights[id];
    if (running > target) return id;
  }
  return kept.at(-1) ?? best;
}

/** Ids of the tokens that top-k, top-p and min-p keep, ascending. */
function keptTokens(values: Float64Array, weights: Float64Array, sampling: StepSampling, row: number): Int32Array {
  const topK = sampling.topK[row];
  const topP = sampling.topP[row];
  const minP = sampling.minP[row];
  const all = topK === 0 && topP >= 1;
  let kept = all ? Int32Array.from({ length: values.length }, (_, id) => id) : ranked(values);
  if (topK > 0) kept = kept.subarray(0, topK);
  if (topP < 1) {
    const mass = topP * kept.reduce((sum, id) => sum + weights[id], 0);
    let running = 0;
    let count = 0;
    while (count < kept.length && (count === 0 || running < mass)) running += weights[kept[count++]] as number;
    kept = kept.subarray(0, count);
  }
  return kept.filter((id) => weights[id] >= minP).sort();
}
