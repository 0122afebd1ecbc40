// What handing a prompt over costs: time to the first token with prefill and decode apart against one instance, and what of the copy was hidden.
import { setTimeout as sleep } from 'node:timers/promises';
import type { GenerationRequest, InferencePort } from '../cluster/ports.ts';
import { median, round } from './statistics.ts';

export interface HandOffBench {
  /** One instance, and pairs of which one prefills and the other decodes, with as many threads to prefill: pages leave layer by layer, or at the end. */
  readonly alone: InferencePort;
  readonly pair: InferencePort;
  readonly atEnd: InferencePort;
  readonly vocabSize: number;
  /** Lengths of prompts. */
  readonly prompts: readonly number[];
  readonly repeats: number;
  readonly onProgress: (line: string) => void;
}

export interface HandOffRow {
  readonly prompt: number;
  /** Medians, of runs that take turns. */
  readonly aloneMs: number;
  readonly apartMs: number;
  readonly atEndMs: number;
  /** Copied by the messenger, by its own count. */
  readonly bytes: number;
  readonly copyMs: number;
  /** Of the bytes: left while a step ran, so that nobody waited for them. */
  readonly early: number;
  /** Of the prompt's pages: were computed when the first left. */
  readonly firstPageAt: number;
  /** Of the time that sending at the end adds to that of one instance: was saved; undefined where it adds none. */
  readonly hidden: number | undefined;
}

/** Not timed: a second prompt lands in other pages than the first, and touches them for the first time. */
const warmups = 2;

/** Rows for each length of prompt. Every prompt is new to all caches. */
export async function benchHandOff(options: HandOffBench): Promise<readonly HandOffRow[]> {
  const rows: HandOffRow[] = [];
  for (const prompt of options.prompts) {
    rows.push(await measure(options, prompt));
    options.onProgress(`prompts of ${prompt} tokens`);
  }
  return rows;
}

async function measure({ alone, pair, atEnd, vocabSize, repeats }: HandOffBench, prompt: number): Promise<HandOffRow> {
  const ports = [alone, pair, atEnd];
  const times: number[][] = ports.map(() => []);
  for (let i = 0; i < warmups; i++)
    for (const port of ports) await firstTokenMs(port, newPrompt(prompt, vocabSize, repeats + i));
  const before = await sentBy(pair);
  for (let i = 0; i < repeats; i++) {
    for (const [p, port] of ports.entries()) times[p].push(await firstTokenMs(port, newPrompt(prompt, vocabSize, i)));
  }
  const sent = await sentBy(pair);
  const bytes = sent.bytes - before.bytes;
  const [aloneMs, apartMs, atEndMs] = times.map((all) => median(all) ?? 0);
  return {
    ...{ prompt, aloneMs: round(aloneMs), apartMs: round(apartMs), atEndMs: round(atEndMs) },
    bytes: bytes / repeats,
    copyMs: round(((sent.copySeconds - before.copySeconds) * 1000) / repeats),
    early: round((sent.earlyBytes - before.earlyBytes) / Math.max(1, bytes)),
    firstPageAt: round((sent.firstPages - before.firstPages) / Math.max(1, sent.pages - before.pages)),
    hidden: atEndMs > aloneMs ? round((atEndMs - apartMs) / (atEndMs - aloneMs)) : undefined,
  };
}

/** Until the client hears the first token; resolves when the request has ended. */
export function firstTokenMs(port: InferencePort, prompt: Int32Array): Promise<number> {
  return new Promise((resolve, reject) => {
    const startMs = performance.now();
    let ms = 0;
    port.submit(requestOf(prompt), (event) => {
      if (event.kind === 'tokens' && ms === 0) ms = performance.now() - startMs;
      if (event.kind === 'finished') resolve(ms);
      if (event.kind === 'failed') reject(new Error(event.message));
    });
  });
}

let requests = 0;

function requestOf(prompt: Int32Array): GenerationRequest {
  const sampling = {
    ...{ temperature: 0, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1, frequencyPenalty: 0, presencePenalty: 0 },
    ...{ logitBias: [], seed: [0, 0] as const, topLogprobs: undefined, promptLogprobs: false },
  };
  const id = `hand-off ${requests++}`;
  return { id, prompt, maxTokens: 2, sampling, stopTokenIds: [], priority: 0, salt: id };
}

/** Tokens that no one chose; another walk for each `kind`. */
export function newPrompt(length: number, vocabSize: number, kind: number): Int32Array {
  return Int32Array.from({ length }, (_, i) => ((i + 1) * (2 * kind + 7919) + length) % vocabSize);
}

/** What has been copied so far. The client of a request may hear its end before the instance that sent its prompt has told its count. */
async function sentBy(port: InferencePort) {
  while (port.instances().some(({ waiting, running, pages }) => waiting + running + pages.used > 0)) await sleep(1);
  const sum = { bytes: 0, earlyBytes: 0, copySeconds: 0, pages: 0, firstPages: 0 };
  for (const { sent } of port.instances()) {
    sum.bytes += sent?.bytes ?? 0;
    sum.earlyBytes += sent?.earlyBytes ?? 0;
    sum.copySeconds += sent?.copySeconds ?? 0;
    sum.pages += sent?.pages ?? 0;
    sum.firstPages += sent?.firstPages ?? 0;
  }
  return sum;
}
