// `kvasir bench overhead`: what a token costs over HTTP beyond the engine's step, with both measured in turns.
import { median, round } from '../statistics.ts';
import { type Endpoint, firstModel, timedCompletion } from './client.ts';
import { randomPrompts } from './prompts.ts';

/** Milliseconds of single steps of an engine; `EngineBench` is one. */
export interface TimedSteps {
  prefill(tokens: number, repeats: number): readonly number[];
  decode(batch: number, depth: number, steps: number): readonly number[];
}

export interface OverheadOptions {
  readonly url: string;
  /** Undefined: the first model that the endpoint lists. */
  readonly model?: string | undefined;
  readonly rounds: number;
  /** Prompt tokens of the prefill row. */
  readonly prompt: number;
  /** Numbers of sequences that decode together. */
  readonly batch: readonly number[];
  /** Prompt tokens of the decode rows. */
  readonly depth: number;
  /** Output tokens of each sequence in the decode rows. */
  readonly generate: number;
  readonly onProgress?: ((line: string) => void) | undefined;
  /** Milliseconds of a steady clock; default: `performance.now`. */
  readonly now?: () => number;
}

export interface OverheadRow {
  readonly row: string;
  /** Median time of the engine's step. */
  readonly engineMs: number;
  /** Median TTFT, or median gap between tokens of a stream. */
  readonly httpMs: number;
  /** Median over the rounds of the difference. */
  readonly overheadMs: number;
  /** Median over the rounds of HTTP over the engine. */
  readonly ratio: number;
}

export interface OverheadReport {
  readonly rounds: number;
  readonly rows: readonly OverheadRow[];
}

interface Measured {
  readonly row: string;
  readonly engineMs: () => number;
  readonly httpMs: () => Promise<number>;
}

/** Timed engine steps of each decode row and round: they span the middle of the streams' depths. */
const stepsPerRound = 12;
/** Untimed rounds: the first requests and steps of a process are slower. */
const warmUpRounds = 1;

/** @throws Error if a request fails */
export async function benchOverhead(engine: TimedSteps, options: OverheadOptions): Promise<OverheadReport> {
  const { url, rounds, onProgress } = options;
  const model = options.model ?? (await firstModel({ url, apiKey: undefined }));
  const endpoint: Endpoint = { url, model, apiKey: undefined, now: options.now ?? (() => performance.now()) };
  const measured = [
    prefillRow(engine, endpoint, options),
    ...options.batch.map((n) => decodeRow(engine, endpoint, options, n)),
  ];
  const times = measured.map(() => ({ engine: [] as number[], http: [] as number[] }));
  for (let round = -warmUpRounds; round < rounds; round++) {
    for (const [i, { engineMs, httpMs }] of measured.entries()) {
      const pair = { engine: engineMs(), http: await httpMs() };
      if (round < 0) continue;
      times[i].engine.push(pair.engine);
      times[i].http.push(pair.http);
    }
    if (round >= 0) onProgress?.(`round ${round + 1} of ${rounds}`);
  }
  return { rounds, rows: measured.map(({ row }, i) => summarise(row, times[i])) };
}

function summarise(row: string, { engine, http }: { readonly engine: number[]; readonly http: number[] }): OverheadRow {
  return {
    row,
    engineMs: round(medianOf(engine)),
    httpMs: round(medianOf(http)),
    overheadMs: round(medianOf(http.map((ms, i) => ms - engine[i]))),
    ratio: round(medianOf(http.map((ms, i) => ms / engine[i]))),
  };
}

function prefillRow(engine: TimedSteps, endpoint: Endpoint, { prompt }: OverheadOptions): Measured {
  return {
    row: `prefill of ${prompt}`,
    engineMs: () => medianOf(engine.prefill(prompt, 1)),
    httpMs: async () =>
      expectComplete(await timedCompletion(endpoint, { prompt: randomPrompts.take(prompt), maxTokens: 1 })).ttftMs ??
      Number.NaN,
  };
}

function decodeRow(
  engine: TimedSteps,
  endpoint: Endpoint,
  { depth, generate }: OverheadOptions,
  streams: number,
): Measured {
  const steps = Math.min(stepsPerRound, generate);
  const middle = depth + Math.floor((generate - steps) / 2);
  return {
    row: `decode of ${streams}`,
    engineMs: () => medianOf(engine.decode(streams, middle, steps)),
    httpMs: async () => {
      const requests = Array.from({ length: streams }, () => ({
        prompt: randomPrompts.take(depth),
        maxTokens: generate,
      }));
      const answers = await Promise.all(requests.map((request) => timedCompletion(endpoint, request)));
      return medianOf(answers.flatMap((answer) => expectComplete(answer).gapsMs));
    },
  };
}

function expectComplete(answer: Awaited<ReturnType<typeof timedCompletion>>): typeof answer {
  if (answer.complete) return answer;
  throw new Error(`Cannot bench the overhead: a completion failed: status ${answer.status ?? 'missing'}`);
}

function medianOf(values: readonly number[]): number {
  return median(values) ?? Number.NaN;
}
