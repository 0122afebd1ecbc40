// Deviation of a form from the float32 form of the same stored weights: perplexity, KL divergence, agreement on the top
// token.
import type { Backend } from '../kernel/backend.ts';
import { pageTokens } from '../util/step.ts';
import type { ModelFiles } from '../weights/types.ts';
import { Engine } from './engine.ts';
import { kvTypeOf, type ModelForms } from './forms.ts';
import { freeModel, loadModel } from './load-model.ts';
import { groupedStep, type PlainPages, plainPages } from './plain-step.ts';

/** The forms of a model. Without a type of K and V: f32 beside f32 inputs, else bf16. */
export type AccuracyForm = ModelForms;

export interface AccuracyRow extends Required<AccuracyForm> {
  /** exp of the mean negative log-probability of each next token. */
  readonly perplexity: number;
  /** Mean over positions of KL(f32 || form), in nats. */
  readonly meanKl: number;
  /** Share of positions with the same top token as f32, 0..1. */
  readonly sameTop: number;
}

export interface AccuracyOptions {
  readonly model: string | ModelFiles;
  readonly backend: Backend;
  /** One text of at least two tokens; each token but the first is predicted from all tokens before it. */
  readonly tokens: ArrayLike<number>;
  readonly forms: readonly AccuracyForm[];
  /** Rows of logits read at once. */
  readonly blockRows?: number;
}

/** The reference of all measurements: the weights as stored, all arithmetic in float32. */
export const accuracyBaseline: AccuracyForm = { weights: 'native', inputs: 'f32' };

/** The baseline and all forms process the text block by block, so that no logits are kept. */
export function measureAccuracy(options: AccuracyOptions): AccuracyRow[] {
  const { tokens, backend, blockRows = 64 } = options;
  if (tokens.length < 2) throw new Error(`Cannot measure accuracy: the text has ${tokens.length} tokens: 2 required`);
  const baseline = new Reader(accuracyBaseline, options, blockRows);
  const readers = options.forms.map((form) => new Reader(form, options, blockRows));
  const sums = readers.map(() => ({ loss: 0, kl: 0, same: 0 }));
  const positions = tokens.length - 1;
  for (let start = 0; start < positions; start += blockRows) {
    const count = Math.min(blockRows, positions - start);
    const block = Array.from({ length: count }, (_, i) => tokens[start + i]);
    const expected = baseline.logits(block, start);
    for (const [index, reader] of readers.entries()) {
      const logits = reader.logits(block, start);
      const vocabulary = logits.length / count;
      for (let row = 0; row < count; row++) {
        const at = row * vocabulary;
        const comparison = compareRows(expected.subarray(at, at + vocabulary), logits.subarray(at, at + vocabulary));
        sums[index].loss -= logits[at + tokens[start + row + 1]] - comparison.logSum;
        sums[index].kl += comparison.kl;
        sums[index].same += comparison.sameTop ? 1 : 0;
      }
    }
  }
  for (const reader of [baseline, ...readers]) reader.close(backend);
  return sums.map(({ loss, kl, same }, index) => ({
    ...options.forms[index],
    kvType: kvTypeOf(options.forms[index]),
    perplexity: Math.exp(loss / positions),
    meanKl: kl / positions,
    sameTop: same / positions,
  }));
}

/** A model in one form that processes the text block by block. */
class Reader {
  readonly #engine: Engine;
  readonly #blocks: readonly number[];
  readonly #pages: readonly PlainPages[];
  readonly #abort = new Int32Array(1);

  constructor(forms: AccuracyForm, { model, backend, tokens }: AccuracyOptions, blockRows: number) {
    const loaded = loadModel({ model, backend, ...forms, context: tokens.length });
    this.#blocks = Array.from({ length: Math.ceil(tokens.length / pageTokens) }, (_, block) => block);
    this.#pages = plainPages(this.#blocks.length, loaded.kv.groups);
    const kvBytes = this.#pages.reduce((sum, { pageTable }) => sum + pageTable.length, 0) * loaded.kv.pageBytes;
    this.#engine = new Engine({ model: loaded, backend, tokensMax: blockRows, logitRowsMax: blockRows, kvBytes });
  }

  /** (tokens, vocabulary) logits after each token. */
  logits(tokens: readonly number[], start: number): Float32Array {
    const step = groupedStep([{ tokens, start, blocks: this.#blocks, logits: 'all' }], this.#pages);
    if (this.#engine.run(step, this.#abort).kind !== 'done')
      throw new Error('Cannot measure accuracy: the step was aborted');
    return this.#engine.readLogits(tokens.length);
  }

  close(backend: Backend): void {
    this.#engine.close();
    freeModel(this.#engine.model, backend);
  }
}

export interface RowComparison {
  /** KL(expected || given). */
  readonly kl: number;
  readonly sameTop: boolean;
  /** ln of the sum of exp of the given logits. */
  readonly logSum: number;
}

/** Logits of one position against the expected ones. */
export function compareRows(expected: Float32Array, given: Float32Array): RowComparison {
  const p = summary(expected);
  const q = summary(given);
  let kl = 0;
  for (let id = 0; id < expected.length; id++) {
    const logP = expected[id] - p.logSum;
    kl += Math.exp(logP) * (logP - (given[id] - q.logSum));
  }
  return { kl, sameTop: p.top === q.top, logSum: q.logSum };
}

function summary(logits: Float32Array): { readonly top: number; readonly logSum: number } {
  let top = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id] > logits[top]) top = id;
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - logits[top]);
  return { top, logSum: logits[top] + Math.log(sum) };
}
