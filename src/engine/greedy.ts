// Greedy generation of one sequence with a pool of its own: goldens and accuracy measurements use no scheduler.
import { pageTokens, topLogprobsMax } from '../util/step.ts';
import type { Engine } from './engine.ts';
import { groupedStep, plainPages } from './plain-step.ts';

export interface GreedyToken {
  readonly token: number;
  readonly logprob: number;
  /** Best `topLogprobsMax` first. */
  readonly topTokens: Int32Array;
  readonly topLogprobs: Float32Array;
}

/** Yields `count` tokens after the prompt, which is prefilled in chunks of `chunk` tokens. */
export function* greedyTokens(
  engine: Engine,
  prompt: ArrayLike<number>,
  count: number,
  chunk = engine.tokensMax,
): Generator<GreedyToken> {
  const blocks = Array.from({ length: Math.ceil((prompt.length + count) / pageTokens) }, (_, id) => id);
  const pages = plainPages(blocks.length, engine.model.kv.groups);
  const abort = new Int32Array(1);
  const pending = Array.from(prompt);
  let start = 0;
  for (let made = 0; made < count; ) {
    const tokens = pending.splice(0, chunk);
    const last = pending.length === 0;
    const step = groupedStep([{ tokens, start, blocks, logits: last ? 'last' : 'none' }], pages);
    const outcome = engine.run(step, abort);
    if (outcome.kind !== 'done') throw new Error('Cannot generate: the step was aborted');
    start += tokens.length;
    if (!last) continue;
    const { result } = outcome;
    if (result.failed[0]) throw new Error(`Cannot generate: the logits are not finite: position ${start - 1}`);
    yield {
      token: result.tokens[0],
      logprob: result.logprobs[0],
      topTokens: result.topTokens.slice(0, topLogprobsMax),
      topLogprobs: result.topLogprobs.slice(0, topLogprobsMax),
    };
    pending.push(result.tokens[0]);
    made++;
  }
}

/** The next `count` token ids after a prompt. */
export function generateGreedy(engine: Engine, prompt: ArrayLike<number>, count: number): number[] {
  return Array.from(greedyTokens(engine, prompt, count), ({ token }) => token);
}
