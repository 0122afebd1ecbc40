// Pipeline groups: time to first token of a group with a layer range per instance, against one instance alone.
import { setTimeout as sleep } from 'node:timers/promises';
import type { InferencePort } from '../core/protocol/ports.ts';
import { firstTokenMs } from './hand-off.ts';
import { newPrompt } from './requests.ts';
import { median, round } from './statistics.ts';

export interface PipelineBench {
  /** A prefill and a decode instance; a group of prefill instances and a decode instance. */
  readonly alone: InferencePort;
  readonly group: InferencePort;
  /** Largest age of the reported chunk counters. */
  readonly countedMs: number;
  readonly vocabSize: number;
  /** Lengths of prompts. */
  readonly prompts: readonly number[];
  readonly repeats: number;
  readonly onProgress: (line: string) => void;
}

export interface PipelineRow {
  readonly prompt: number;
  /** Medians of alternating runs. */
  readonly aloneMs: number;
  readonly groupMs: number;
  /** Time alone over time of the group. */
  readonly faster: number;
  /** Chunks of a prompt on each member; 0: computed by one instance. */
  readonly chunks: number;
}

/** Rows for each prompt length, after untimed prompts. Every prompt is new to all caches. */
export async function benchPipeline(options: PipelineBench): Promise<readonly PipelineRow[]> {
  const rows: PipelineRow[] = [];
  for (const prompt of options.prompts) {
    rows.push(await measure(options, prompt));
    options.onProgress(`prompts of ${prompt} tokens`);
  }
  return rows;
}

async function measure(options: PipelineBench, prompt: number): Promise<PipelineRow> {
  const { alone, group, countedMs, vocabSize, repeats } = options;
  const ports = [alone, group];
  const times: number[][] = ports.map(() => []);
  for (const port of ports) await firstTokenMs(port, newPrompt(prompt, vocabSize, repeats));
  await sleep(countedMs);
  const before = chunksOf(group);
  for (let i = 0; i < repeats; i++) {
    for (const [p, port] of ports.entries()) times[p].push(await firstTokenMs(port, newPrompt(prompt, vocabSize, i)));
  }
  await sleep(countedMs);
  const [aloneMs, groupMs] = times.map((all) => median(all) ?? 0);
  return {
    ...{ prompt, aloneMs: round(aloneMs), groupMs: round(groupMs), faster: round(aloneMs / groupMs) },
    chunks: round((chunksOf(group) - before) / repeats),
  };
}

/** Chunks that first members have computed. */
function chunksOf(port: InferencePort): number {
  return port.instances().reduce((sum, { pipelineChunks = [] }) => sum + (pipelineChunks[0] ?? 0), 0);
}
