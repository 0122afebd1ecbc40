// Closed loops of requests that keep all tokens, and of requests with a KV budget, on one instance: `kvasir bench sparse-serving`.
import { setTimeout as sleep } from 'node:timers/promises';
import type { GenerationRequest, InferencePort } from '../../core/protocol/ports.ts';
import { greedyRequest, newPrompt } from '../requests.ts';
import { median, percentile, round } from '../statistics.ts';

export interface SparseServingBench {
  /** One instance, which allows KV budgets. */
  readonly port: InferencePort;
  readonly vocabSize: number;
  readonly promptTokens: number;
  readonly outputTokens: number;
  /** The first loop is the one that the others are compared with. */
  readonly loops: readonly LoadLoop[];
  /** Requests of each client in the measured window of a loop. */
  readonly requests: number;
  /** Every loop runs once in each round. */
  readonly rounds: number;
  readonly onProgress: (line: string) => void;
}

export interface LoadLoop {
  readonly budget: number | 'full';
  /** Each sends its next request when the last one has ended. */
  readonly clients: number;
}

export interface SparseServingRow extends LoadLoop {
  /** Output tokens of the window: median of rounds. */
  readonly tokensPerSecond: number;
  /** Ratio to the first loop: median of rounds. */
  readonly timesFirst: number;
  readonly ttftMs: number;
  readonly ttftP95Ms: number;
  /** Median of the mean time per output token of each request. */
  readonly tpotMs: number;
  /** Prompt tokens that a sparse layer keeps. */
  readonly keptTokens: number;
  /** Share of the pages that sequences hold in the mean, in percent, and the largest share that was seen. */
  readonly heldPercent: number;
  readonly heldMaxPercent: number;
  /** Pages that sequences hold, in ten equal parts of the window: the largest number in each. Of the last round. */
  readonly pagesOverTime: readonly number[];
  /** Mean number of running sequences. */
  readonly running: number;
  readonly preemptions: number;
  /** Mean time of a step, and the share of the window in which a step ran, in percent. */
  readonly stepMs: number;
  readonly stepPercent: number;
}

export interface SparseServingReport {
  readonly promptTokens: number;
  readonly outputTokens: number;
  readonly pages: number;
  /** Time to first token of a prompt alone. */
  readonly promptMs: number;
  readonly rows: readonly SparseServingRow[];
}

interface Window {
  readonly seconds: number;
  readonly tokens: number;
  readonly ttftMs: readonly number[];
  readonly tpotMs: readonly number[];
  readonly keptTokens: number;
  readonly heldPages: number;
  readonly heldPagesMax: number;
  readonly pagesOverTime: readonly number[];
  readonly running: number;
  readonly preemptions: number;
  readonly steps: number;
  readonly stepMsTotal: number;
}

/** Prompts timed alone. */
const prompts = 1;

export async function benchSparseServing(options: SparseServingBench): Promise<SparseServingReport> {
  const { port, loops, rounds, promptTokens, outputTokens, onProgress } = options;
  const requests = new Requests(options);
  const alone: number[] = [];
  for (let i = 0; i < prompts; i++) alone.push((await requests.send('full', 1).ended).ttftMs);
  const windows = loops.map((): Window[] => []);
  for (let round = 0; round < rounds; round++) {
    // Alternating order, so that a drift of the machine speed favours no loop.
    const order = [...loops.entries()];
    for (const [index, loop] of round % 2 === 0 ? order : order.reverse()) {
      const window = await runLoop(requests, options, loop);
      windows[index].push(window);
      const { tokens, seconds } = window;
      onProgress(`${loop.clients} clients, budget ${loop.budget}: ${(tokens / seconds).toFixed(1)} tokens/s`);
    }
  }
  const { total } = port.snapshot().pages;
  return {
    ...{ promptTokens, outputTokens, pages: total, promptMs: round(median(alone) ?? 0) },
    rows: loops.map((loop, index) => rowOf(loop, windows[index], windows[0], total)),
  };
}

function rowOf(loop: LoadLoop, own: readonly Window[], first: readonly Window[], pages: number): SparseServingRow {
  const middle = (of: (window: Window) => number) => median(own.map(of)) ?? 0;
  const all = (of: (window: Window) => readonly number[]) => own.flatMap(of);
  const rate = ({ tokens, seconds }: Window) => tokens / seconds;
  return {
    ...loop,
    tokensPerSecond: round(middle(rate)),
    timesFirst: round(median(own.map((window, i) => rate(window) / rate(first[i]))) ?? 0),
    ttftMs: round(median(all(({ ttftMs }) => ttftMs)) ?? 0),
    ttftP95Ms: round(
      percentile(
        all(({ ttftMs }) => ttftMs),
        95,
      ) ?? 0,
    ),
    tpotMs: round(median(all(({ tpotMs }) => tpotMs)) ?? 0),
    keptTokens: own[0].keptTokens,
    heldPercent: round((100 * middle(({ heldPages }) => heldPages)) / pages),
    heldMaxPercent: round((100 * Math.max(...own.map(({ heldPagesMax }) => heldPagesMax))) / pages),
    pagesOverTime: own.at(-1)?.pagesOverTime ?? [],
    running: round(middle(({ running }) => running)),
    preemptions: own.reduce((sum, { preemptions }) => sum + preemptions, 0),
    stepMs: round(middle(({ steps, stepMsTotal }) => stepMsTotal / Math.max(1, steps))),
    stepPercent: round(middle(({ seconds, stepMsTotal }) => stepMsTotal / (10 * seconds))),
  };
}

/** Interval between samples of pages and running sequences. */
const sampleMs = 20;

/** The window begins when every client has ended a request, and ends after `requests` more of each client in the mean. */
async function runLoop(requests: Requests, { port, requests: each, outputTokens }: SparseServingBench, loop: LoadLoop) {
  const { clients, budget } = loop;
  const running: Sent[] = [];
  let ended = 0;
  let stopped = false;
  const until = (count: number) =>
    new Promise<void>((resolve) => {
      const check = setInterval(() => {
        if (ended < count) return;
        clearInterval(check);
        resolve();
      }, 1);
    });
  const finished: Ended[] = [];
  const client = async (index: number): Promise<void> => {
    // First outputs of different lengths: clients that start together do not end together.
    let tokens = Math.ceil((outputTokens * (index + 1)) / clients);
    while (!stopped) {
      const sent = requests.send(budget, tokens);
      running[index] = sent;
      finished.push(await sent.ended);
      ended++;
      tokens = outputTokens;
    }
  };
  const loops = Array.from({ length: clients }, (_, index) => client(index));
  await Promise.race([until(clients), ...loops]);
  const [startMs, startTokens, before] = [performance.now(), requests.tokens, port.snapshot()];
  const started = finished.length;
  const samples: { readonly held: number; readonly running: number }[] = [];
  const sampling = setInterval(() => {
    const { pages, running } = port.snapshot();
    samples.push({ held: pages.used, running });
  }, sampleMs);
  await Promise.race([until(clients * (each + 1)), ...loops]);
  clearInterval(sampling);
  const [endMs, tokens, after] = [performance.now(), requests.tokens - startTokens, port.snapshot()];
  stopped = true;
  for (const { cancel } of running) cancel();
  while (port.snapshot().running > 0) await sleep(10);
  const inWindow = finished.slice(started);
  const mean = (of: (sample: (typeof samples)[number]) => number) =>
    samples.reduce((sum, sample) => sum + of(sample), 0) / Math.max(1, samples.length);
  return {
    ...{ seconds: (endMs - startMs) / 1000, tokens },
    ttftMs: inWindow.map(({ ttftMs }) => ttftMs),
    tpotMs: inWindow.map(({ tpotMs }) => tpotMs),
    keptTokens: inWindow[0]?.keptTokens ?? 0,
    heldPages: mean(({ held }) => held),
    heldPagesMax: Math.max(0, ...samples.map(({ held }) => held)),
    pagesOverTime: largestOfParts(samples.map(({ held }) => held)),
    running: mean((sample) => sample.running),
    preemptions: after.preemptions - before.preemptions,
    steps: after.steps - before.steps,
    stepMsTotal: after.stepMsTotal - before.stepMsTotal,
  };
}

const windowParts = 10;

/** The largest value in each of ten equal parts; the parts without values are omitted. */
function largestOfParts(values: readonly number[]): number[] {
  const bounds = Array.from({ length: windowParts + 1 }, (_, part) => Math.floor((part * values.length) / windowParts));
  return bounds.slice(1).flatMap((end, part) => {
    const own = values.slice(bounds[part], end);
    return own.length === 0 ? [] : Math.max(...own);
  });
}

interface Ended {
  readonly ttftMs: number;
  readonly tpotMs: number;
  readonly keptTokens: number;
}

interface Sent {
  readonly ended: Promise<Ended>;
  cancel(): void;
}

/** Greedy requests, each with a new prompt. */
class Requests {
  readonly #bench: SparseServingBench;
  #sent = 0;
  /** Output tokens of all requests. */
  tokens = 0;

  constructor(bench: SparseServingBench) {
    this.#bench = bench;
  }

  send(budget: number | 'full', outputTokens: number): Sent {
    const { port, promptTokens, vocabSize } = this.#bench;
    const kind = this.#sent++;
    const id = `serving ${kind}`;
    const request: GenerationRequest = {
      ...greedyRequest(id, newPrompt(promptTokens, vocabSize, kind), outputTokens, id),
      kvBudget: budget,
    };
    let cancel = (): void => {};
    const ended = new Promise<Ended>((resolve, reject) => {
      const startMs = performance.now();
      let firstMs: number | undefined;
      let count = 0;
      let keptTokens = promptTokens;
      const end = () => {
        const [now, first] = [performance.now(), firstMs ?? startMs];
        resolve({ ttftMs: first - startMs, tpotMs: (now - first) / Math.max(1, count - 1), keptTokens });
      };
      cancel = () => {
        port.cancel(id);
        end();
      };
      port.submit(request, (event) => {
        if (event.kind === 'started') keptTokens = event.keptTokens ?? promptTokens;
        if (event.kind === 'tokens') {
          firstMs ??= performance.now();
          count += event.tokens.length;
          this.tokens += event.tokens.length;
        }
        if (event.kind === 'finished') end();
        if (event.kind === 'failed') reject(new Error(event.message));
      });
    });
    return { ended, cancel };
  }
}
