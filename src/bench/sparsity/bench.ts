// `kvasir bench sparsity`: what a model loses that reads only a part of the KV of its prompts.
import { compareRows } from '../../engine/accuracy.ts';
import { freeModel, loadModel } from '../../engine/load-model.ts';
import type { InputForm } from '../../graph/program.ts';
import type { Backend } from '../../kernel/backend.ts';
import type { Tokenizer } from '../../text/tokenizer.ts';
import { Prng } from '../../util/prng.ts';
import type { ModelFiles } from '../../weights/types.ts';
import { round } from '../statistics.ts';
import type { ChoiceCase } from './choices.ts';
import { LayeredModel } from './layered-model.ts';
import {
  fullLayersOf,
  keepsByScore,
  type MethodRules,
  type SparseMethod,
  SparseSequence,
  type SparsityMethod,
} from './methods.ts';
import { profileOf, type SparsityProfile } from './profile.ts';
import { type AnswerPart, depthTasks, fillerText, type RecallTask, recallCase } from './recall.ts';
import { isGreedy, logitRow, logLikelihood, type Predictions, perplexityScore } from './scoring.ts';
import type { SelectionRules } from './sparse-steps.ts';

export const sparsityTasks = ['needle', 'perplexity', 'agreement', 'choice'] as const;
export type SparsityTask = (typeof sparsityTasks)[number];

export interface SparsityBenchOptions extends MethodRules {
  readonly files: ModelFiles;
  readonly tokenizer: Tokenizer;
  readonly inputs: InputForm;
  readonly methods: readonly SparsityMethod[];
  /** Shares of the prompt's tokens, 0..1. */
  readonly budgets: readonly number[];
  readonly tasks: readonly SparsityTask[];
  /** What `needle` consists of. */
  readonly recallTasks: readonly RecallTask[];
  /** Percent of the text. */
  readonly depths: readonly number[];
  /** Tokens of a prompt. */
  readonly tokens: number;
  /** Prompts of each task and depth. */
  readonly cases: number;
  /** Tokens after the prompt of `perplexity` and `agreement`. */
  readonly continuation: number;
  /** Text of `perplexity` and `agreement`; undefined: generated sentences. */
  readonly text: string | undefined;
  readonly choices: readonly ChoiceCase[];
  /** Rules that methods which keep tokens by score are compared with, on the same prompts; default: those above. */
  readonly selections?: readonly SelectionRules[] | undefined;
  readonly onProgress: (line: string) => void;
}

export interface SparsityRow {
  readonly method: SparsityMethod;
  /** Share of the prompt's tokens in a sparse layer, in percent; 100 for `full`. */
  readonly budget: number;
  /** Of a method that keeps tokens by score, where several rules are compared: queries, pooling, and reduction over heads. */
  readonly observe?: number | undefined;
  readonly pooling?: string | undefined;
  readonly headReduce?: SelectionRules['headReduce'] | undefined;
  /** Share of the prompt's KV that is kept or, if selected for each query, read; all layers, in percent. */
  readonly kept: number;
  readonly task: Exclude<SparsityTask, 'needle'> | RecallTask;
  /** Percent of the text; null for a task without depth. */
  readonly depth: number | null;
  /** Percent: answers found; 100 x perplexity of `full` / perplexity; positions with the greedy token of `full`. */
  readonly score: number;
  readonly cases: number;
  /** Mean KL(full || method) in nats, of `agreement`. */
  readonly kl?: number;
  readonly perplexity?: number;
}

export interface SparsityReport {
  readonly model: string;
  readonly isa: string;
  readonly promptTokens: number;
  readonly rows: readonly SparsityRow[];
}

export function benchSparsity(backend: Backend, options: SparsityBenchOptions): SparsityReport {
  return withModel(backend, options, (model) => ({
    model: options.files.id,
    isa: backend.isa,
    promptTokens: options.tokens,
    rows: new SparsityBench(model, options).run(),
  }));
}

export interface SparsityProfileReport extends Omit<SparsityReport, 'rows'>, SparsityProfile {
  readonly prompts: number;
}

/** Profiles attention over the prompts of `perplexity`. @param mass share of the attention that a sparse layer should keep, 0..1 */
export function profileSparsity(backend: Backend, options: SparsityBenchOptions, mass: number): SparsityProfileReport {
  return withModel(backend, options, (model) => {
    const weights = [...new SparsityBench(model, options).texts()].map(({ sequence }) => sequence.weights());
    const facts = { model: options.files.id, isa: backend.isa, promptTokens: options.tokens, prompts: weights.length };
    return { ...facts, ...profileOf(weights, mass) };
  });
}

function withModel<T>(backend: Backend, options: SparsityBenchOptions, use: (model: LayeredModel) => T): T {
  const { files, inputs, tokens, continuation, selections = [options] } = options;
  const tokensMax = Math.max(128, ...selections.map(({ observed }) => observed));
  const context = Math.min(files.config.maxPositions, tokens + Math.max(continuation, 128));
  const full = fullLayersOf('quest', options.fullLayers);
  const sparseLayers = Array.from({ length: files.config.layers }, (_, layer) => layer >= full);
  const loaded = loadModel({ model: files, backend, inputs, context, sparseLayers });
  const model = new LayeredModel(loaded, backend, tokensMax, context);
  try {
    return use(model);
  } finally {
    model.close();
    freeModel(loaded, backend);
  }
}

/** Sums of one row. */
interface Tally extends Omit<SparsityRow, 'score' | 'kept' | 'kl' | 'perplexity'> {
  kept: number;
  cases: number;
  right: number;
  answers: number;
  logLikelihood: number;
  fullLogLikelihood: number;
  kl: number;
  predicted: number;
}

class SparsityBench {
  readonly #model: LayeredModel;
  readonly #options: SparsityBenchOptions;
  readonly #methods: readonly SparseMethod[];
  readonly #tallies = new Map<string, Tally>();

  constructor(model: LayeredModel, options: SparsityBenchOptions) {
    this.#model = model;
    this.#options = options;
    const { methods, budgets, selections = [] } = options;
    this.#methods = methods.flatMap((method): SparseMethod[] => {
      if (method === 'full') return [{ method, budget: 1 }];
      const rules = keepsByScore(method) && selections.length > 0 ? selections : [undefined];
      return rules.flatMap((selection) => budgets.map((budget) => ({ method, budget, selection })));
    });
  }

  run(): SparsityRow[] {
    const { tasks } = this.#options;
    const usesText = tasks.includes('perplexity') || tasks.includes('agreement');
    if (tasks.includes('needle')) this.#recall();
    for (const { sequence, continuation } of usesText ? this.texts() : []) {
      if (tasks.includes('perplexity')) this.#perplexity(sequence, continuation);
      if (tasks.includes('agreement')) this.#agreement(sequence, continuation[0]);
    }
    if (tasks.includes('choice')) this.#choices();
    return [...this.#tallies.values()].map(rowOf);
  }

  #recall(): void {
    const { recallTasks, depths, cases, seed, tokens, onProgress } = this.#options;
    for (const task of recallTasks) {
      for (const depth of depthTasks.has(task) ? depths : [undefined]) {
        onProgress(`${task}${depth === undefined ? '' : ` at ${depth} %`}`);
        for (let index = 0; index < cases; index++) {
          const countTokens = (text: string) => this.#encode(text).length;
          const { prompt, parts } = recallCase({ task, depth, tokens, seed, index, countTokens });
          this.#answers(task, depth, this.#prompt(prompt), parts);
        }
      }
    }
  }

  #answers(task: SparsityRow['task'], depth: number | undefined, prompt: number[], parts: readonly AnswerPart[]): void {
    // The last token of the prompt predicts the first of an answer: it is computed after the selection.
    const last = prompt.splice(-1);
    const options = parts.map(({ lead, answer, others }, index) => ({
      lead: [...(index === 0 ? last : []), ...this.#encode(lead)],
      answers: [answer, ...others].map((text) => this.#encode(text)),
    }));
    const length = options.reduce((sum, { lead, answers }) => sum + lead.length + longest(answers), 0);
    const sequence = this.#sequence(prompt, length);
    for (const method of this.#methods) {
      const tally = this.#tally(sequence, method, task, depth);
      for (const right of answersRight(sequence, method, options)) {
        tally.answers++;
        if (right) tally.right++;
      }
    }
  }

  #choices(): void {
    const { choices, onProgress } = this.#options;
    onProgress(`${choices.length} questions with choices`);
    for (const { prompt, choices: texts, answer } of choices) {
      const others = texts.filter((_, index) => index !== answer);
      this.#answers('choice', undefined, this.#prompt(prompt), [{ lead: '', answer: texts[answer], others }]);
    }
  }

  /** Prompts of a text, with the text that follows each. */
  *texts(): Generator<{ readonly sequence: SparseSequence; readonly continuation: readonly number[] }> {
    const { tokens, continuation, cases, seed, text, onProgress } = this.#options;
    const length = tokens + continuation;
    const all = this.#encode(
      text ?? fillerText(seed, (length + 1) * cases, (sentence) => this.#encode(sentence).length),
    );
    if (all.length < length) throw new Error(`Cannot measure a text: it has ${all.length} tokens: ${length} required`);
    for (let index = 0; index < cases; index++) {
      const start = spread(all.length - length, index, cases, seed);
      onProgress(`text ${index + 1} of ${cases}`);
      const sequence = this.#sequence(all.slice(start, start + tokens), continuation);
      yield { sequence, continuation: all.slice(start + tokens, start + length) };
    }
  }

  #perplexity(sequence: SparseSequence, continuation: readonly number[]): void {
    const full = logLikelihood(sequence.predict({ method: 'full', budget: 1 }, continuation), continuation, 1);
    for (const method of this.#methods) {
      const tally = this.#tally(sequence, method, 'perplexity', undefined);
      tally.logLikelihood += logLikelihood(sequence.predict(method, continuation), continuation, 1);
      tally.fullLogLikelihood += full;
      tally.predicted += continuation.length - 1;
    }
  }

  #agreement(sequence: SparseSequence, first: number): void {
    const greedy = sequence.continueGreedily(first, this.#options.continuation);
    const expected = sequence.predict({ method: 'full', budget: 1 }, greedy);
    for (const method of this.#methods) {
      const tally = this.#tally(sequence, method, 'agreement', undefined);
      const given = sequence.predict(method, greedy);
      for (let row = 0; row < greedy.length; row++) {
        const { kl, sameTop } = compareRows(logitRow(expected, row), logitRow(given, row));
        tally.kl += kl;
        tally.answers++;
        tally.predicted++;
        if (sameTop) tally.right++;
      }
    }
  }

  #sequence(prompt: readonly number[], continuation: number): SparseSequence {
    const { context } = this.#model.engine.model;
    if (prompt.length + continuation > context)
      throw new Error(
        `Cannot measure a prompt of ${prompt.length} tokens and ${continuation} after it: the context is ${context}`,
      );
    return new SparseSequence(this.#model, this.#options, prompt, continuation);
  }

  #tally(sequence: SparseSequence, sparse: SparseMethod, task: SparsityRow['task'], depth?: number): Tally {
    const { method, budget, selection } = sparse;
    const rule = ruleOf(this.#options.selections?.length === 1 ? undefined : selection);
    const key = JSON.stringify([method, budget, rule, task, depth]);
    const tally = this.#tallies.get(key) ?? {
      ...{ method, ...rule, budget: round(100 * budget), task, depth: depth ?? null },
      ...{ kept: 0, cases: 0, right: 0, answers: 0, logLikelihood: 0, fullLogLikelihood: 0, kl: 0, predicted: 0 },
    };
    this.#tallies.set(key, tally);
    tally.kept += sequence.keptShare(sparse);
    tally.cases++;
    return tally;
  }

  #prompt(text: string): number[] {
    return this.#options.tokenizer.encode(text, { parseSpecial: false });
  }

  #encode(text: string): number[] {
    return this.#options.tokenizer.encode(text, { addSpecial: false, parseSpecial: false });
  }
}

/** Tokens of an answer: the lead, the right answer, and wrong ones behind it. */
interface AnswerTokens {
  readonly lead: readonly number[];
  readonly answers: readonly (readonly number[])[];
}

/** Whether each part is answered rightly; the right answers of earlier parts are given. */
function answersRight(sequence: SparseSequence, method: SparseMethod, parts: readonly AnswerTokens[]): boolean[] {
  const tokens = parts.flatMap(({ lead, answers }) => [...lead, ...answers[0]]);
  let predictions: Predictions | undefined;
  let before: number[] = [];
  return parts.map(({ lead, answers }) => {
    const given = [...before, ...lead];
    before = [...given, ...answers[0]];
    if (answers.length > 1) return isLikeliest(sequence, method, given, answers);
    predictions ??= sequence.predict(method, tokens);
    return isGreedy(predictions, tokens, given.length, before.length);
  });
}

/** True if the first answer is more likely than each other one. */
function isLikeliest(
  sequence: SparseSequence,
  method: SparseMethod,
  lead: readonly number[],
  answers: readonly (readonly number[])[],
): boolean {
  const [right, ...others] = answers.map((answer) => {
    const tokens = [...lead, ...answer];
    return logLikelihood(sequence.predict(method, tokens), tokens, lead.length);
  });
  return others.every((other) => other < right);
}

function longest(answers: readonly (readonly number[])[]): number {
  return Math.max(...answers.map(({ length }) => length));
}

/** A seeded place in the index-th of equal parts. */
function spread(places: number, index: number, count: number, seed: number): number {
  return Math.floor(((index + new Prng(seed, 2 ** 21 + index).uniform()) / count) * places);
}

/** The columns of a rule. */
function ruleOf(selection: SelectionRules | undefined): Pick<SparsityRow, 'observe' | 'pooling' | 'headReduce'> {
  if (selection === undefined) return {};
  const { observed, pooling, headReduce } = selection;
  return { observe: observed, pooling: `${pooling.kind}:${pooling.width}`, headReduce };
}

function rowOf(tally: Tally): SparsityRow {
  const { method, observe, pooling, headReduce, budget, task, depth, cases, kept, predicted } = tally;
  const rule = observe === undefined ? {} : { observe, pooling, headReduce };
  const isPerplexity = task === 'perplexity';
  return {
    ...{ method, ...rule, budget, kept: round((100 * kept) / cases), task, depth },
    score: round(
      isPerplexity
        ? perplexityScore(tally.fullLogLikelihood, tally.logLikelihood, predicted)
        : (100 * tally.right) / tally.answers,
    ),
    cases,
    ...(task === 'agreement' ? { kl: Number((tally.kl / predicted).toPrecision(3)) } : {}),
    ...(isPerplexity ? { perplexity: round(Math.exp(-tally.logLikelihood / predicted)) } : {}),
  };
}
