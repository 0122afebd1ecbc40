// Scores of predicted continuations, in percent: higher is better.

/** (rows, vocabulary) logits; row i predicts the token after the i-th token of the continuation. */
export interface Predictions {
  readonly logits: Float32Array;
  readonly vocabulary: number;
}

export function logitRow({ logits, vocabulary }: Predictions, row: number): Float32Array {
  return logits.subarray(row * vocabulary, (row + 1) * vocabulary);
}

/** The token with the highest logit; of equal ones the lowest id. */
export function topToken(logits: Float32Array): number {
  let top = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id] > logits[top]) top = id;
  return top;
}

/** ln of a token's probability. */
export function logProbability(logits: Float32Array, token: number): number {
  const max = logits[topToken(logits)];
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - max);
  return logits[token] - max - Math.log(sum);
}

/** ln of the probability of the tokens from..to - 1 of a continuation, given those before them; `from` is at least 1. */
export function logLikelihood(
  predictions: Predictions,
  continuation: readonly number[],
  from: number,
  to = continuation.length,
): number {
  let sum = 0;
  for (let i = from; i < to; i++) sum += logProbability(logitRow(predictions, i - 1), continuation[i]);
  return sum;
}

/** True if greedy decoding gives the tokens from..to - 1 of the continuation, given those before them. */
export function isGreedy(
  predictions: Predictions,
  continuation: readonly number[],
  from: number,
  to = continuation.length,
): boolean {
  for (let i = from; i < to; i++) if (topToken(logitRow(predictions, i - 1)) !== continuation[i]) return false;
  return true;
}

/** 100 x perplexity of the full model / perplexity, of the same `tokens` tokens. May exceed 100. */
export function perplexityScore(fullLogLikelihood: number, logLikelihood: number, tokens: number): number {
  return 100 * Math.exp((logLikelihood - fullLogLikelihood) / tokens);
}
