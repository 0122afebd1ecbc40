// The rows of `bench http`: one stream, many streams, shared prefixes, a long prompt beside health checks, overload.
import { median, round, summary } from '../statistics.ts';
import { type Endpoint, type TimedAnswer, type TimedRequest, timedCompletion, timedGet } from './client.ts';
import type { PromptSource } from './prompts.ts';

export interface RowSizes {
  readonly repeats: number;
  readonly promptTokens: number;
  readonly outputTokens: number;
  readonly streamPromptTokens: number;
  readonly prefixTokens: number;
  readonly longTokens: number;
  readonly overloadRequests: number;
  readonly healthCalls: number;
}

/** The sizes of the recorded rows of llama-server and vLLM. */
export const fullSizes: RowSizes = {
  repeats: 5,
  promptTokens: 512,
  outputTokens: 64,
  streamPromptTokens: 128,
  prefixTokens: 1000,
  longTokens: 4000,
  overloadRequests: 320,
  healthCalls: 500,
};

const ownTokens = 16;
const sharingStreams = 8;

interface RowContext {
  readonly endpoint: Endpoint;
  readonly prompts: PromptSource;
  readonly sizes: RowSizes;
}

type Row = (context: RowContext) => Promise<object>;

export const rows: Readonly<Record<string, Row>> = {
  single,
  c8: (context) => streams(context, 8),
  c32: (context) => streams(context, 32),
  prefix,
  together,
  long,
  overload,
};

async function single({ endpoint, prompts, sizes }: RowContext): Promise<object> {
  const answers: TimedAnswer[] = [];
  for (let i = 0; i < sizes.repeats; i++) {
    answers.push(
      await timedCompletion(endpoint, { prompt: prompts.take(sizes.promptTokens), maxTokens: sizes.outputTokens }),
    );
  }
  const decoded = answers.filter(({ outputTokens }) => outputTokens > 1);
  return {
    promptTokens: sizes.promptTokens,
    ttftMs: round(median(ttfts(answers))),
    decodeTokensPerSecond: round(
      median(decoded.map(({ outputTokens, decodeMs }) => (1000 * (outputTokens - 1)) / decodeMs)),
    ),
    requests: answers.length,
    complete: countComplete(answers),
  };
}

/** Waves of requests that start together; latencies of all waves, throughput of the median wave. */
async function streams({ endpoint, prompts, sizes }: RowContext, count: number): Promise<object> {
  const answers: TimedAnswer[] = [];
  const rates: number[] = [];
  for (let wave = 0; wave < sizes.repeats; wave++) {
    const startMs = endpoint.now();
    const tokenLists = Array.from({ length: count }, () => prompts.take(sizes.streamPromptTokens));
    const answered = await atOnce(endpoint, tokenLists, sizes.outputTokens);
    rates.push(tokensPerSecond(answered, endpoint.now() - startMs));
    answers.push(...answered);
  }
  return {
    streams: count,
    tokensPerSecond: round(median(rates)),
    ...latencies(answers),
    requests: answers.length,
    complete: countComplete(answers),
  };
}

/** One request, then seven of the same prefix, which start at its first token. */
async function prefix({ endpoint, prompts, sizes }: RowContext): Promise<object> {
  const firstMs: number[] = [];
  const followersMs: number[] = [];
  const cachedTokens = new Set<number>();
  for (let i = 0; i < sizes.repeats; i++) {
    const { first, followers } = await followFirst(endpoint, prompts, sizes);
    firstMs.push(expectTtft('prefix', first));
    followersMs.push(median(followers.map((answer) => expectTtft('prefix', answer))) ?? Number.NaN);
    for (const follower of followers) cachedTokens.add(follower.cachedTokens);
  }
  const ratios = followersMs.map((ms, i) => ms / (firstMs[i] ?? Number.NaN));
  return {
    prefixTokens: sizes.prefixTokens,
    firstTtftMs: round(median(firstMs)),
    followersTtftMs: round(median(followersMs)),
    ratio: round(median(ratios)),
    cachedTokens: [...cachedTokens],
  };
}

/** One prompt, then seven of the same prefix from its first token on. */
async function followFirst(
  endpoint: Endpoint,
  prompts: PromptSource,
  sizes: RowSizes,
): Promise<{ first: TimedAnswer; followers: TimedAnswer[] }> {
  const shared = prompts.take(sizes.prefixTokens);
  const send = (extra: Partial<TimedRequest> = {}): Promise<TimedAnswer> =>
    timedCompletion(endpoint, {
      prompt: [...shared, ...prompts.take(ownTokens)],
      maxTokens: sizes.outputTokens,
      ...extra,
    });
  let others: Promise<TimedAnswer[]> = Promise.resolve([]);
  const onFirstToken = (): void => {
    others = Promise.all(Array.from({ length: sharingStreams - 1 }, () => send()));
  };
  const first = await send({ onFirstToken });
  return { first, followers: await others };
}

/** Requests of one prefix that start at once: the prompt tokens that were computed, over those of one prompt. */
async function together({ endpoint, prompts, sizes }: RowContext): Promise<object> {
  const shared = prompts.take(sizes.prefixTokens);
  const tokenLists = Array.from({ length: sharingStreams }, () => [...shared, ...prompts.take(ownTokens)]);
  const answers = await atOnce(endpoint, tokenLists, sizes.outputTokens);
  for (const answer of answers) expectTtft('together', answer);
  const computed = answers.reduce((sum, { promptTokens, cachedTokens }) => sum + promptTokens - cachedTokens, 0);
  return {
    streams: sharingStreams,
    computedTokens: computed,
    ratio: round(computed / (sizes.prefixTokens + ownTokens)),
    ttftMs: summary(ttfts(answers)),
  };
}

/** Prefills of a long prompt alone, then with consecutive health checks beside them until there are enough. */
async function long({ endpoint, prompts, sizes }: RowContext): Promise<object> {
  const prefill = (): Promise<TimedAnswer> =>
    timedCompletion(endpoint, { prompt: prompts.take(sizes.longTokens), maxTokens: 1 });
  const ttftMs: number[] = [];
  for (let i = 0; i < sizes.repeats; i++) ttftMs.push(expectTtft('long', await prefill()));
  const idle = new HealthCalls(endpoint);
  while (idle.count < sizes.healthCalls) await idle.call();
  const busy = new HealthCalls(endpoint);
  while (busy.count < sizes.healthCalls) {
    let running = true;
    const ended = prefill().finally(() => {
      running = false;
    });
    while (running) await busy.call();
    expectTtft('long', await ended);
  }
  const excess = (summary(busy.ms).p99 ?? Number.NaN) - (summary(idle.ms).p99 ?? Number.NaN);
  return {
    promptTokens: sizes.longTokens,
    ttftMs: round(median(ttftMs)),
    healthIdleMs: summary(idle.ms),
    healthBusyMs: summary(busy.ms),
    healthExcessP99Ms: round(excess),
    healthFailed: idle.failed + busy.failed,
  };
}

class HealthCalls {
  readonly ms: number[] = [];
  failed = 0;
  readonly #endpoint: Endpoint;

  constructor(endpoint: Endpoint) {
    this.#endpoint = endpoint;
  }

  get count(): number {
    return this.ms.length + this.failed;
  }

  async call(): Promise<void> {
    const ms = await timedGet(this.#endpoint, '/health');
    if (ms === undefined) this.failed++;
    else this.ms.push(ms);
  }
}

async function overload({ endpoint, prompts, sizes }: RowContext): Promise<object> {
  const startMs = endpoint.now();
  const tokenLists = Array.from({ length: sizes.overloadRequests }, () => prompts.take(sizes.streamPromptTokens));
  const answers = await atOnce(endpoint, tokenLists, sizes.outputTokens);
  const elapsedMs = endpoint.now() - startMs;
  const served = answers.filter(({ complete }) => complete);
  const refused = answers.filter(({ status }) => status === 429);
  const refusalMs = refused.map(({ statusMs }) => statusMs);
  return {
    requests: answers.length,
    served: served.length,
    refused: refused.length,
    lost: answers.length - served.length - refused.length,
    refusalMs: { ...summary(refusalMs), max: round(refusalMs.length === 0 ? undefined : Math.max(...refusalMs)) },
    tokensPerSecond: round(tokensPerSecond(served, elapsedMs)),
    ...latencies(served),
  };
}

function atOnce(endpoint: Endpoint, tokenLists: readonly number[][], maxTokens: number): Promise<TimedAnswer[]> {
  return Promise.all(tokenLists.map((prompt) => timedCompletion(endpoint, { prompt, maxTokens })));
}

function latencies(answers: readonly TimedAnswer[]): object {
  return {
    ttftMs: summary(ttfts(answers)),
    itlMs: summary(answers.flatMap(({ gapsMs }) => gapsMs)),
  };
}

function tokensPerSecond(answers: readonly TimedAnswer[], ms: number): number {
  return (1000 * answers.reduce((sum, { outputTokens }) => sum + outputTokens, 0)) / ms;
}

function ttfts(answers: readonly TimedAnswer[]): number[] {
  return answers.flatMap(({ ttftMs }) => ttftMs ?? []);
}

function countComplete(answers: readonly TimedAnswer[]): number {
  return answers.filter(({ complete }) => complete).length;
}

/** The time to first token, which a row requires. @throws Error if there is none */
function expectTtft(row: string, { ttftMs, status, promptTokens }: TimedAnswer): number {
  if (ttftMs !== undefined) return ttftMs;
  throw new Error(
    `Cannot bench ${row}: a prompt of ${promptTokens} tokens gave no token: status ${status ?? 'missing'}`,
  );
}
