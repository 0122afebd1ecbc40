// Golden cases of the shared models, and the distance of an engine from a case.
import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Engine } from '../../src/engine/engine.ts';
import { groupedStep, plainPages } from '../../src/engine/plain-step.ts';
import { pageTokens } from '../../src/util/step.ts';

/** Models outside the repository: tests that need them skip where they are missing. */
export const sharedModels = fileURLToPath(new URL('../../../shared/models', import.meta.url));
export const embeddedModel = fileURLToPath(new URL('../../models/kvasir-tiny', import.meta.url));

export interface GoldenCase {
  readonly name: string;
  readonly prompt: readonly number[];
  readonly greedy: readonly number[];
  readonly steps: readonly { readonly ids: readonly number[]; readonly logprobs: readonly number[] }[];
}

interface GoldenFile {
  readonly cases: readonly (Omit<GoldenCase, 'name'> & { readonly name?: string })[];
}

interface TinyGoldenFile {
  readonly prompts: readonly {
    readonly name: string;
    readonly prompt_ids: readonly number[];
    readonly greedy_ids: readonly number[];
    readonly steps: readonly { readonly top_ids: readonly number[]; readonly top_logits: readonly number[] }[];
  }[];
}

/** Cases of a folder under the shared models; none when it is missing. */
export function goldenCases(folder: string): readonly GoldenCase[] {
  const path = `${sharedModels}/${folder}/golden.json`;
  if (!existsSync(path)) return [];
  const file: GoldenFile = JSON.parse(readFileSync(path, 'utf8'));
  return file.cases.map((golden) => ({ ...golden, name: golden.name ?? `${golden.prompt.length} tokens` }));
}

export interface TinyGolden {
  readonly name: string;
  readonly prompt: readonly number[];
  readonly greedy: readonly number[];
  /** Logits without their log-sum: only differences between ids of one step are given. */
  readonly steps: readonly { readonly ids: readonly number[]; readonly logits: readonly number[] }[];
}

export function tinyGoldens(): readonly TinyGolden[] {
  const file: TinyGoldenFile = JSON.parse(readFileSync(`${embeddedModel}/golden.json`, 'utf8'));
  return file.prompts.map(({ name, prompt_ids, greedy_ids, steps }) => ({
    name,
    prompt: prompt_ids,
    greedy: greedy_ids,
    steps: steps.map(({ top_ids, top_logits }) => ({ ids: top_ids, logits: top_logits })),
  }));
}

export interface ForcedStep {
  /** The token that the engine would choose. */
  readonly token: number;
  readonly logits: Float32Array;
}

/** Runs the prompt, then each golden token, independent of the tokens that the engine would choose. */
export function* forcedSteps(
  engine: Engine,
  prompt: readonly number[],
  golden: readonly number[],
): Generator<ForcedStep> {
  const blocks = Array.from({ length: Math.ceil((prompt.length + golden.length) / pageTokens) }, (_, id) => id);
  const pages = plainPages(blocks.length, engine.model.kv.groups);
  const run = (tokens: readonly number[], start: number, logits: 'none' | 'last'): ForcedStep => {
    const outcome = engine.run(groupedStep([{ tokens, start, blocks, logits }], pages), new Int32Array(1));
    if (outcome.kind !== 'done') throw new Error('the step was aborted');
    return { token: outcome.result.tokens[0], logits: engine.readLogits(outcome.result.tokens.length) };
  };
  let start = 0;
  for (; start + engine.tokensMax < prompt.length; start += engine.tokensMax) {
    run(prompt.slice(start, start + engine.tokensMax), start, 'none');
  }
  yield run(prompt.slice(start), start, 'last');
  for (const [i, token] of golden.slice(0, -1).entries()) yield run([token], prompt.length + i, 'last');
}

/** Log-softmax of a row of logits at some ids. */
export function logprobsAt(logits: Float32Array, ids: readonly number[]): number[] {
  const max = logits.reduce((largest, value) => Math.max(largest, value), -Infinity);
  const logSum = max + Math.log(logits.reduce((sum, value) => sum + Math.exp(value - max), 0));
  return ids.map((id) => logits[id] - logSum);
}

export interface Distance {
  /** Largest distance of a log-probability, and the root mean square of all. */
  readonly worst: number;
  readonly rms: number;
  /** Index of the first token that differs from the golden one. */
  readonly differsAt: number | undefined;
}

/** Distance of an engine's log-probabilities from the golden ones. */
export function distance(engine: Engine, golden: GoldenCase): Distance {
  const offs: number[] = [];
  let differsAt: number | undefined;
  let index = 0;
  for (const { token, logits } of forcedSteps(engine, golden.prompt, golden.greedy)) {
    if (token !== golden.greedy[index]) differsAt ??= index;
    const step = golden.steps[index];
    if (step !== undefined) {
      for (const [rank, value] of logprobsAt(logits, step.ids).entries())
        offs.push(Math.abs(value - step.logprobs[rank]));
    }
    index++;
  }
  const rms = Math.sqrt(offs.reduce((sum, off) => sum + off * off, 0) / offs.length);
  return { worst: Math.max(...offs), rms, differsAt };
}
