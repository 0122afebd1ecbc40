// Time of a placement decision: a full prefix index of many instances, and the prompts of a trace.

import type { BlockChain } from '../core/protocol/kv-events.ts';
import type { PlacedPrompt } from '../core/router/placement/placed-prompt.ts';
import { Placer } from '../core/router/placement/placer.ts';
import { Float64Pool } from '../core/scheduler/executor/float64-pool.ts';
import { LengthRequest } from '../core/scheduler/executor/length-request.ts';
import type { TraceRequest } from '../trace/request.ts';
import { scramble } from '../util/scramble.ts';
import { percentile, round } from './statistics.ts';

export interface PlacementBenchOptions {
  readonly prompts: readonly TraceRequest[];
  readonly blockTokens: number;
  readonly instances: number;
  /** Distinct blocks in the index, and replicas of the blocks of a prompt. */
  readonly blocks: number;
  readonly replicas: number;
  /** Passes over the prompts; the one with the smallest median counts. */
  readonly repeats: number;
  readonly onProgress: (line: string) => void;
}

export interface PlacementBenchReport {
  readonly instances: number;
  readonly blocks: number;
  /** Mean number of instances that hold a block; shared prefixes have more. */
  readonly replicas: number;
  readonly indexMebibytes: number;
  /** Time to store a block, with one batch of KV events per prompt and instance. */
  readonly storeUs: number;
  readonly prompts: number;
  readonly blocksOfPrompt: number;
  readonly matchedPrompts: number;
  readonly decisionUs: { readonly p50: number; readonly p99: number; readonly max: number };
}

/** Concurrent requests per instance. */
const requestsPerInstance = 8;
/** Two microseconds per token: the values do not matter here. */
const predictor = { prefillUs: (tokens: number, cachedTokens: number) => 2 * (tokens - cachedTokens) };

export function benchPlacement(options: PlacementBenchOptions): PlacementBenchReport {
  const { blockTokens, instances, prompts, onProgress } = options;
  const before = process.memoryUsage().arrayBuffers;
  const placer = new Placer<LengthRequest>(new Array<boolean>(instances).fill(true), {
    kind: 'cache-aware',
    seed: [0, 0],
    balancingThreshold: 1.5,
    blockTokens,
    prompts: { chainOf: ({ chain }) => chain, priorityOf: () => 0, tenantOf: () => '', mayPipeline: () => true },
    transfers: {
      ends: new Array(instances).fill({ bytesPerSecond: 1e11, us: 10 }),
      linkBytesPerSecond: undefined,
      bytesPerToken: 327_680,
    },
    predictors: new Array(instances).fill(predictor),
    blocks: options.blocks,
    rememberedBlocks: 0,
  });
  const gaps = new Float64Pool();
  const requests = prompts.map((prompt) => new LengthRequest(prompt, blockTokens, gaps));
  const filled = fill(placer, requests, options);
  onProgress(`${filled.blocks} blocks on ${instances} instances: ${round(filled.storeUs)} us for each that was stored`);
  const indexMebibytes = (process.memoryUsage().arrayBuffers - before) / 2 ** 20;
  const passes = Array.from({ length: options.repeats }, (_, pass) => {
    const times = decide(placer, requests, instances);
    const [p50 = 0, p99 = 0, max = 0] = [50, 99, 100].map((p) => percentile(times, p));
    onProgress(`pass ${pass + 1}: median ${round(p50)} us, p99 ${round(p99)} us`);
    return { p50: round(p50), p99: round(p99), max: round(max) };
  });
  passes.sort((a, b) => a.p50 - b.p50);
  const [decisionUs] = passes;
  return {
    instances,
    blocks: filled.blocks,
    replicas: round(filled.stored / filled.blocks),
    indexMebibytes: Math.round(indexMebibytes),
    storeUs: round(filled.storeUs),
    prompts: requests.length,
    blocksOfPrompt: round(requests.reduce((sum, { chain }) => sum + chain.blocks, 0) / requests.length),
    matchedPrompts: requests.filter(
      (request) => (placer.choose(0, request, request.trace.inputTokens)?.localBlocks ?? 0) > 0,
    ).length,
    decisionUs,
  };
}

interface Filled {
  readonly blocks: number;
  readonly stored: number;
  readonly storeUs: number;
}

/** Stores the blocks of the prompts, then of unrelated prompts of the same lengths, each on `replicas` instances. */
function fill(
  placer: Placer<LengthRequest>,
  requests: readonly LengthRequest[],
  { instances, blocks, replicas }: PlacementBenchOptions,
): Filled {
  const numbers = new Float64Array(instances);
  let nextId = 0;
  for (const { trace } of requests) {
    for (const id of trace.blocks) {
      nextId = Math.max(nextId, id + 1);
    }
  }
  let [indexed, stored, us] = [0, 0, 0];
  for (let k = 0; indexed < blocks; k++) {
    const { chain } = requests[k % requests.length];
    const own = k < requests.length;
    const words = own ? chain.words : unrelatedWords(chain, nextId);
    nextId += own ? 0 : chain.blocks;
    const events = { incarnation: 0, changes: chain.blocks, words, stored: new Uint8Array(chain.blocks).fill(1) };
    const first = (scramble(k) >>> 0) % instances;
    const started = performance.now();
    for (let i = 0; i < replicas; i++) {
      const instance = (first + i * Math.ceil(instances / replicas)) % instances;
      placer.applyEvents(instance, { ...events, number: ++numbers[instance] });
    }
    us += 1000 * (performance.now() - started);
    stored += replicas * chain.blocks;
    indexed = placer.heldBlocks;
  }
  return { blocks: indexed, stored, storeUs: us / stored };
}

function unrelatedWords({ blocks, words }: BlockChain, firstId: number): Uint32Array {
  const fresh = new Uint32Array(words.length);
  for (let i = 0; i < blocks; i++) fresh.fill(scramble(firstId + i), 4 * i, 4 * i + 2);
  return fresh;
}

/** Microseconds of each decision, placing included. */
function decide(placer: Placer<LengthRequest>, requests: readonly LengthRequest[], instances: number): number[] {
  const placed: PlacedPrompt[] = [];
  const times = requests.map((request, i) => {
    const nowUs = i * 1000;
    const started = performance.now();
    const decision = placer.choose(nowUs, request, request.trace.inputTokens);
    if (decision === undefined) throw new Error('Cannot measure placement: no instance is up');
    placed.push(placer.place(nowUs, request, request.trace.inputTokens, decision));
    const us = 1000 * (performance.now() - started);
    if (placed.length > requestsPerInstance * instances) endOldest(placer, placed, nowUs);
    return us;
  });
  while (placed.length > 0) endOldest(placer, placed, requests.length * 1000);
  return times;
}

function endOldest(placer: Placer<LengthRequest>, placed: PlacedPrompt[], nowUs: number): void {
  const [oldest] = placed.splice(0, 1);
  if (oldest === undefined) return;
  placer.prefilled(nowUs, oldest);
  placer.ended(oldest);
}
