// A deterministic engine for tests: it keeps tokens in pages instead of keys and values, and answers from what it reads back.
import { pageTokens, type Step, type StepResult, topLogprobsMax } from '../../src/util/step.ts';

const vocabulary = 50;

function mix(hash: number, value: number): number {
  return Math.imul(hash ^ (value + 0x9e3779b9), 0x85ebca6b) ^ (hash >>> 13);
}

/** The token that follows a prefix. With a seed, another for each; seen tokens and bias change it as well. */
export function nextToken(prefix: Iterable<number>, seed: number, tokenIndex: number, extra = 0): number {
  let hash = 17;
  for (const token of prefix) hash = mix(hash, token);
  for (const value of [seed, tokenIndex, extra]) hash = mix(hash, value);
  return (hash >>> 4) % vocabulary;
}

/** What the penalties' lists and the bias add up to: independent of the order of the list. */
export function extraOf(tokens: ArrayLike<number>, counts: ArrayLike<number>, bias: number): number {
  let sum = bias * 1000;
  for (let i = 0; i < tokens.length; i++) sum += Math.imul((tokens[i] ?? 0) + 1, (counts[i] ?? 0) * 31 + 7);
  return sum | 0;
}

/** A log-probability that depends on the prefix and the token: exact in float32. */
export function logprobOf(prefix: Iterable<number>, token: number): number {
  return -nextToken(prefix, 99, token) / 64;
}

/** Holds (pages, 32) slots for each page id; every layer of a block keeps its own copy, salted by the layer. */
export class FakeEngine {
  readonly #slots: Int32Array;
  rows = 0;
  steps = 0;

  constructor(pages: number) {
    this.#slots = new Int32Array(pages * pageTokens).fill(-1);
  }

  /** Writes all rows (or, when it will be aborted, garbage into some) and answers each logit row. */
  run(step: Step): StepResult {
    this.#write(step, step.tokens.length, false);
    this.rows += step.tokens.length;
    this.steps++;
    const rows = step.logitRows.length;
    const result = {
      tokens: new Int32Array(rows),
      logprobs: new Float32Array(rows),
      topTokens: new Int32Array(rows * topLogprobsMax),
      topLogprobs: new Float32Array(rows * topLogprobsMax),
      failed: new Uint8Array(rows),
    };
    for (let i = 0; i < rows; i++) this.#answer(step, i, result);
    return result;
  }

  /** Some rows were written before the step stopped, some only in half of their layers. */
  abort(step: Step, rows: number): void {
    this.#write(step, Math.min(rows, step.tokens.length), true);
  }

  #write(step: Step, rows: number, broken: boolean): void {
    for (let row = 0; row < rows; row++) {
      const sequence = sequenceOf(step, row);
      for (let layer = 0; layer < layersOf(step); layer++) {
        const slot = this.#slot(step, sequence, step.positions[row] as number, layer);
        this.#slots[slot] = broken && layer > 0 ? -7 : (step.tokens[row] as number) + layer * 1000;
      }
    }
  }

  #answer(step: Step, i: number, result: StepResult): void {
    const row = step.logitRows[i] as number;
    const sampling = step.sampling;
    const prefix = this.#prefix(step, row);
    const seed = sampling.seed[2 * i] as number;
    const [seenFrom, seenTo] = [sampling.seenStart[i], sampling.seenStart[i + 1]];
    const bias = sampling.biasValues.subarray(sampling.biasStart[i], sampling.biasStart[i + 1]);
    const seen = sampling.seenTokens.subarray(seenFrom, seenTo);
    const extra = extraOf(
      seen,
      sampling.seenCounts.subarray(seenFrom, seenTo),
      bias.reduce((sum, b) => sum + b, 0),
    );
    const scored = sampling.hasTarget[i] === 1;
    const token = scored
      ? (sampling.target[i] as number)
      : nextToken(prefix, seed, sampling.tokenIndex[i] as number, extra);
    result.tokens[i] = token;
    result.logprobs[i] = logprobOf(prefix, token);
    for (let k = 0; k < (sampling.topLogprobs[i] as number); k++) {
      result.topTokens[i * topLogprobsMax + k] = k;
      result.topLogprobs[i * topLogprobsMax + k] = logprobOf(prefix, k);
    }
  }

  /** Reads the row's own prefix through the block table, from every layer. */
  #prefix(step: Step, row: number): number[] {
    const sequence = sequenceOf(step, row);
    const length = (step.positions[row] as number) + 1;
    return Array.from({ length }, (_, position) => {
      const values = Array.from({ length: layersOf(step) }, (_, layer) => {
        return (this.#slots[this.#slot(step, sequence, position, layer)] as number) - layer * 1000;
      });
      if (values.some((value) => value !== values[0]))
        throw new Error(`Layers disagree at position ${position}: ${values}`);
      return values[0] as number;
    });
  }

  #slot(step: Step, sequence: number, position: number, layer: number): number {
    const group = step.groups[0];
    if (group === undefined) throw new Error('A step has no layer group');
    const index = (group.blockStart[sequence] as number) + Math.floor(position / pageTokens);
    if (index >= (group.blockStart[sequence + 1] ?? group.blocks.length))
      throw new Error(`No block for position ${position}`);
    const page = group.pageTable[(group.blocks[index] as number) * group.layers + layer] as number;
    return page * pageTokens + (position % pageTokens);
  }
}

function layersOf(step: Step): number {
  return step.groups[0]?.layers ?? 0;
}

function sequenceOf(step: Step, row: number): number {
  let sequence = 0;
  while ((step.rowStart[sequence + 1] as number) <= row) sequence++;
  return sequence;
}
