// Borrowed KV memory: speed against one large instance, bytes with and without settlements, and stalls against a larger instance.
import { setTimeout as sleep } from 'node:timers/promises';
import type { GenerationRequest, InferencePort } from '../core/protocol/ports.ts';
import { pageTokens } from '../util/step.ts';
import { greedyRequest, newPrompt } from './requests.ts';
import { median, round } from './statistics.ts';

/** The tokens of a request, and their times since its submission. */
interface Run {
  readonly tokenMs: readonly number[];
  readonly tokens: readonly number[];
}

let requests = 0;

/** Resolves at the end of the request; rejects if it fails. */
export function timedRun(
  port: InferencePort,
  prompt: Int32Array,
  maxTokens: number,
  onToken?: (count: number) => void,
) {
  return new Promise<Run>((resolve, reject) => {
    const startMs = performance.now();
    const tokenMs: number[] = [];
    const tokens: number[] = [];
    port.submit(requestOf(prompt, maxTokens), (event) => {
      if (event.kind === 'tokens') {
        tokenMs.push(performance.now() - startMs);
        tokens.push(...event.tokens);
        onToken?.(tokenMs.length);
      }
      if (event.kind === 'finished') resolve({ tokenMs, tokens });
      if (event.kind === 'failed') reject(new Error(event.message));
    });
  });
}

function requestOf(prompt: Int32Array, maxTokens: number): GenerationRequest {
  const id = `borrow ${requests++}`;
  return greedyRequest(id, prompt, maxTokens, id);
}

/** Resolves when all instances are idle and nothing is lent. */
async function waitUntilIdle(port: InferencePort): Promise<void> {
  const isBusy = () =>
    port.instances().some(({ waiting, running, pages, lending }) => {
      return waiting + running + pages.used + (lending?.lentBlocks ?? 0) > 0;
    });
  while (isBusy()) await sleep(5);
}

/** Sums over instances: bytes of queries and partials, time that steps waited for partials, and time that creditors computed them. */
function remoteTotals(port: InferencePort): {
  readonly bytes: number;
  readonly waitMs: number;
  readonly creditorMs: number;
} {
  let [bytes, waitMs, creditorMs] = [0, 0, 0];
  for (const { lending } of port.instances()) {
    bytes += (lending?.remoteAttention.bytesOut ?? 0) + (lending?.remoteAttention.bytesIn ?? 0);
    waitMs += (lending?.remoteAttention.waitSeconds ?? 0) * 1000;
    creditorMs += (lending?.servedAttention.seconds ?? 0) * 1000;
  }
  return { bytes, waitMs, creditorMs };
}

export interface SpeedOptions {
  /** Instances with a pool for part of the context each, and an instance with a pool for all of it. */
  readonly borrowing: InferencePort;
  readonly alone: InferencePort;
  readonly context: number;
  readonly generate: number;
  readonly repeats: number;
  readonly vocabSize: number;
  readonly onProgress: (line: string) => void;
}

/** One request that ends at the given context: medians of alternating runs of `generate` tokens each. */
export async function benchSpeed(options: SpeedOptions) {
  const { borrowing, alone, context, generate, repeats, vocabSize, onProgress } = options;
  const [own, borrowed]: [number[], number[]] = [[], []];
  const [ownFirst, borrowedFirst]: [number[], number[]] = [[], []];
  let spent = { bytes: 0, waitMs: 0, creditorMs: 0 };
  for (let i = 0; i < repeats; i++) {
    const prompt = newPrompt(context - generate, vocabSize, i);
    const aloneRun = await timedRun(alone, prompt, generate);
    const before = { bytes: 0, waitMs: 0, creditorMs: 0 };
    const borrowingRun = await timedRun(borrowing, prompt, generate, (count) => {
      if (count === 1) Object.assign(before, remoteTotals(borrowing));
    });
    await waitUntilIdle(borrowing);
    const after = remoteTotals(borrowing);
    spent = {
      bytes: spent.bytes + after.bytes - before.bytes,
      waitMs: spent.waitMs + after.waitMs - before.waitMs,
      creditorMs: spent.creditorMs + after.creditorMs - before.creditorMs,
    };
    own.push(tbtMs(aloneRun));
    borrowed.push(tbtMs(borrowingRun));
    ownFirst.push(aloneRun.tokenMs[0] ?? 0);
    borrowedFirst.push(borrowingRun.tokenMs[0] ?? 0);
    onProgress(
      `context ${context}: ${round(tbtMs(aloneRun))} ms a token alone, ${round(tbtMs(borrowingRun))} ms borrowing`,
    );
  }
  const tokens = repeats * (generate - 1);
  const [aloneMs, borrowingMs] = [median(own) ?? 0, median(borrowed) ?? 0];
  return {
    ...{ context, generate, aloneTokenMs: round(aloneMs), borrowingTokenMs: round(borrowingMs) },
    speed: round(aloneMs / borrowingMs),
    alonePrefillMs: round(median(ownFirst)),
    borrowingPrefillMs: round(median(borrowedFirst)),
    // Prompt rows send queries too: these counts start after the prompt.
    waitMsPerToken: round(spent.waitMs / tokens),
    creditorMsPerToken: round(spent.creditorMs / tokens),
    remoteBytesPerToken: Math.round(spent.bytes / tokens),
  };
}

function tbtMs({ tokenMs }: Run): number {
  return ((tokenMs.at(-1) ?? 0) - (tokenMs[0] ?? 0)) / Math.max(1, tokenMs.length - 1);
}

export interface SettleOptions {
  /** Two instances with round-robin placement, with settlements and without. */
  readonly on: InferencePort;
  readonly off: InferencePort;
  /** Capacity of a pool in tokens. */
  readonly pool: number;
  readonly vocabSize: number;
  readonly onProgress: (line: string) => void;
}

/**
 * Each of two instances in turn runs short of memory during a long request and borrows from the other, which closes a cycle of debts.
 * Measures the remote bytes per token of the long requests from then on.
 */
export async function benchSettle({ on, off, pool, vocabSize, onProgress }: SettleOptions) {
  const withIt = await mutualDebtRun(on, pool, vocabSize);
  onProgress(`settling: ${Math.round(withIt.bytesPerToken)} remote bytes a token`);
  const without = await mutualDebtRun(off, pool, vocabSize);
  onProgress(`not settling: ${Math.round(without.bytesPerToken)} remote bytes a token`);
  return {
    onBytesPerToken: Math.round(withIt.bytesPerToken),
    offBytesPerToken: Math.round(without.bytesPerToken),
    ratio: round(withIt.bytesPerToken / Math.max(1, without.bytesPerToken)),
    settledBlocks: withIt.settledBlocks,
    sameTokens: withIt.output.join() === without.output.join(),
  };
}

/** Two long requests and short ones that fill the pools, with lengths as shares of a pool. */
async function mutualDebtRun(port: InferencePort, pool: number, vocabSize: number) {
  const part = (share: number) => Math.floor(pool * share);
  const tokens = [0, 0];
  let lastCount = 0;
  const long = (kind: number) => {
    let began: () => void = () => {};
    const decodes = new Promise<void>((resolve) => {
      began = resolve;
    });
    const ended = timedRun(port, newPrompt(part(0.56), vocabSize, kind), part(0.42), (count) => {
      tokens[kind] = count;
      if (count === 1) began();
    });
    return { decodes, ended };
  };
  const short = (kind: number, share: number) =>
    timedRun(port, newPrompt(part(share), vocabSize, 10 + kind), part(0.1));
  const skip = () => timedRun(port, newPrompt(8, vocabSize, 20 + lastCount++), 1);
  // Placement alternates between the instances: `skip` takes the turn of one of them.
  const first = long(0);
  await skip();
  await first.decodes;
  const filler = short(0, 0.3);
  await skip();
  await filler;
  await skip();
  const second = long(1);
  await skip();
  await second.decodes;
  await short(1, 0.1);
  // Time to find and settle a cycle while tokens are generated.
  await sleep(400);
  const [bytes, at] = [remoteTotals(port).bytes, tokens[0] + tokens[1]];
  const output = (await Promise.all([first.ended, second.ended])).flatMap((each) => each.tokens);
  await waitUntilIdle(port);
  const settledBlocks = port.instances().reduce((sum, { lending }) => sum + (lending?.settledBlocks ?? 0), 0);
  return {
    bytesPerToken: (remoteTotals(port).bytes - bytes) / Math.max(1, tokens[0] + tokens[1] - at),
    settledBlocks,
    output,
  };
}

export interface MoveOptions {
  /** Borrowing instances, and one of the same size without borrowing. */
  readonly borrowing: InferencePort;
  readonly small: InferencePort;
  /** Starts a larger instance and loads its weights; resolves when it serves. */
  readonly openBigger: () => Promise<{ readonly port: InferencePort; readonly close: () => Promise<void> }>;
  readonly pool: number;
  /** Output length as a share of the prompt length. */
  readonly shares: readonly number[];
  readonly vocabSize: number;
  readonly onProgress: (line: string) => void;
}

/** A request that outgrows its instance during its output: the stalls of borrowing and of a larger instance, and the total times. */
export async function benchMove(options: MoveOptions) {
  const { borrowing, small, openBigger, pool, shares, vocabSize, onProgress } = options;
  const rows = [];
  const fits = Math.floor(pool / pageTokens) * pageTokens;
  // The shortest output overflows in its middle.
  const length = Math.floor(fits / (1 + Math.min(...shares) / 2));
  for (const [i, share] of shares.entries()) {
    const output = Math.ceil(length * share);
    const before = Math.min(output - 1, fits - length);
    const borrowed = await timedRun(borrowing, newPrompt(length, vocabSize, i), output);
    await waitUntilIdle(borrowing);
    const own = await timedRun(small, newPrompt(length, vocabSize, i), before);
    const startMs = performance.now();
    const bigger = await openBigger();
    const loadMs = performance.now() - startMs;
    try {
      const continued = await timedRun(bigger.port, newPrompt(length + before, vocabSize, i), output - before);
      rows.push({ prompt: length, output, ...moveRow(borrowed, own, loadMs, continued) });
    } finally {
      await bigger.close();
    }
    onProgress(
      `output of ${share} of the prompt: ${rows.at(-1)?.borrowLostMs} ms lost borrowing, ${round(loadMs)} ms loading`,
    );
  }
  return rows;
}

/** One request that borrows, against one that continues on a larger instance after that has loaded. */
function moveRow(borrowed: Run, own: Run, loadMs: number, continued: Run) {
  const gaps = borrowed.tokenMs.slice(1).map((ms, i) => ms - borrowed.tokenMs[i]);
  const usualMs = median(gaps) ?? 0;
  const lostMs = Math.max(0.01, Math.max(...gaps, 0) - usualMs);
  const borrowingMs = borrowed.tokenMs.at(-1) ?? 0;
  const computeAgainMs = continued.tokenMs[0] ?? 0;
  const movedMs = (own.tokenMs.at(-1) ?? 0) + loadMs + (continued.tokenMs.at(-1) ?? 0);
  return {
    ...{ usualTokenMs: round(usualMs), borrowLostMs: round(lostMs), loadMs: round(loadMs) },
    // Assumes that the transfer of computed blocks takes no time.
    lostRatio: round(loadMs / lostMs),
    ...{ borrowingMs: round(borrowingMs), movedMs: round(movedMs), faster: round(movedMs / borrowingMs) },
    computeAgainMs: round(computeAgainMs),
    fasterThanFreeMove: round((movedMs - computeAgainMs) / borrowingMs),
  };
}
