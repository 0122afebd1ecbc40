// Cost of a hand-off: time to first token with prefill and decode on two instances against one, and the hidden share of the copy.
import { setTimeout as sleep } from 'node:timers/promises';
import type { ClusterPort, GenerationRequest, InferencePort } from '../core/protocol/ports.ts';
import { greedyRequest, newPrompt } from './requests.ts';
import { median, round } from './statistics.ts';

type BenchedPort = InferencePort & Pick<ClusterPort, 'requestTrace'>;

export interface HandOffBench {
  /** One mixed instance, and prefill-decode pairs with the same prefill threads: pages sent layer by layer, or at the end. */
  readonly alone: BenchedPort;
  readonly pair: BenchedPort;
  readonly atEnd: BenchedPort;
  readonly vocabSize: number;
  /** Lengths of prompts. */
  readonly prompts: readonly number[];
  readonly repeats: number;
  readonly onProgress: (line: string) => void;
}

export interface HandOffRow {
  readonly prompt: number;
  /** Medians of alternating runs. */
  readonly aloneMs: number;
  readonly apartMs: number;
  readonly atEndMs: number;
  /** Bytes copied, by the counter of the transport. */
  readonly bytes: number;
  readonly copyMs: number;
  /** Share of the bytes that were sent during a step. */
  readonly early: number;
  /** Share of the pages that were computed when the first page was sent. */
  readonly firstPageAt: number;
  /** Share that layer-wise transfer saves of the time that sending at the end adds: median of rounds; undefined if it adds none. */
  readonly hidden: number | undefined;
  /** Median time from the last prompt step to the first token; undefined without step records. */
  readonly aloneAfterMs: number | undefined;
  readonly apartAfterMs: number | undefined;
  readonly atEndAfterMs: number | undefined;
}

/** Untimed prompts, which touch receive buffers for the first time. */
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
  for (let i = 0; i < warmups; i++)
    for (const port of ports) await firstToken(port, newPrompt(prompt, vocabSize, repeats + i));
  const before = await sentBy(pair);
  const runs: FirstToken[][] = ports.map(() => []);
  for (let i = 0; i < repeats; i++) {
    // Alternating order, so that a drift of the machine speed favours no variant.
    const order = i % 2 === 0 ? [0, 1, 2] : [2, 1, 0];
    for (const p of order) runs[p].push(await firstToken(ports[p], newPrompt(prompt, vocabSize, i)));
  }
  const sent = await sentBy(pair);
  const bytes = sent.bytes - before.bytes;
  const [aloneMs, apartMs, atEndMs] = runs.map((all) => round(median(all.map(({ ms }) => ms)) ?? 0));
  const after = runs.map((all) => round(median(all.flatMap(({ afterMs }) => afterMs ?? []))));
  return {
    ...{ prompt, aloneMs, apartMs, atEndMs },
    bytes: bytes / repeats,
    copyMs: round(((sent.copySeconds - before.copySeconds) * 1000) / repeats),
    early: round((sent.earlyBytes - before.earlyBytes) / Math.max(1, bytes)),
    firstPageAt: round((sent.firstPages - before.firstPages) / Math.max(1, sent.pages - before.pages)),
    hidden: hiddenOf(runs),
    ...{ aloneAfterMs: after[0], apartAfterMs: after[1], atEndAfterMs: after[2] },
  };
}

function hiddenOf([alone, apart, atEnd]: readonly (readonly FirstToken[])[]): number | undefined {
  const rounds = atEnd.map(({ ms }, i) => (ms > alone[i].ms ? (ms - apart[i].ms) / (ms - alone[i].ms) : undefined));
  return round(median(rounds.flatMap((share) => share ?? [])));
}

interface FirstToken {
  readonly ms: number;
  readonly afterMs: number | undefined;
}

/** Time to first token, and its part after the last prompt step. */
async function firstToken(port: BenchedPort, prompt: Int32Array): Promise<FirstToken> {
  const request = requestOf(prompt);
  const { ms, atUs } = await timedRequest(port, request);
  // The request may end before its instances have reported their steps.
  await sleep(stepReportMs);
  const steps = port.requestTrace(request.id)?.steps.filter(({ kind, rows }) => kind === 'step' && rows > 1) ?? [];
  const isWhole = steps.reduce((sum, { rows }) => sum + rows, 0) === prompt.length;
  return { ms, afterMs: isWhole ? (atUs - Math.max(...steps.map(({ endedUs }) => endedUs))) / 1000 : undefined };
}

const stepReportMs = 300;

/** Time to first token; resolves when the request has ended. */
export async function firstTokenMs(port: InferencePort, prompt: Int32Array): Promise<number> {
  return (await timedRequest(port, requestOf(prompt))).ms;
}

/** `atUs`: arrival of the first token, in microseconds since 1970. */
function timedRequest(port: InferencePort, request: GenerationRequest): Promise<{ ms: number; atUs: number }> {
  return new Promise((resolve, reject) => {
    const startMs = performance.now();
    let atMs: number | undefined;
    port.submit(request, (event) => {
      if (event.kind === 'tokens') atMs ??= performance.now();
      if (event.kind === 'finished') {
        const firstMs = atMs ?? performance.now();
        resolve({ ms: firstMs - startMs, atUs: (performance.timeOrigin + firstMs) * 1000 });
      }
      if (event.kind === 'failed') reject(new Error(event.message));
    });
  });
}

let requests = 0;

function requestOf(prompt: Int32Array): GenerationRequest {
  const id = `hand-off ${requests++}`;
  return greedyRequest(id, prompt, 2, id);
}

/** Copied bytes so far. A request may end before the sending instance has reported its counter. */
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
