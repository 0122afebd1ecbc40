// Measured serving points, and their simulation with the same clients, lengths and batching rules.

import type { StepCostModel } from '../../core/cost/roofline.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { runClosedLoop } from '../../sim/workload/closed-loop.ts';
import { counterUniform } from '../../util/counter-random.ts';

/** A server under closed-loop load. */
export interface ServingPoint {
  readonly id: string;
  /** Names of the model and hardware entries. */
  readonly model: string;
  readonly hardware: string;
  readonly precision: 'bf16' | 'fp8';
  readonly kv: 'bf16' | 'fp8';
  readonly tensorParallel: number;
  readonly concurrency: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  /** Lengths of single requests are spread evenly from 1 - spread to 1 times these. */
  readonly spread: number;
  readonly ttftMs: number;
  readonly tpotMs: number;
}

/** Time of a request before it reaches the engine: fixed, and per prompt token. */
export interface FrontendTimes {
  readonly requestUs: number;
  readonly tokenUs: number;
}

/** Fitted together with `fittedOverheads`. */
export const fittedFrontend: FrontendTimes = { requestUs: 1111, tokenUs: 0.79 };

export interface Deployment {
  readonly cost: StepCostModel;
  readonly memoryBytes: number;
  readonly weightBytes: number;
}

/** Larger than vLLM's 16, so that more equal steps coalesce; a request holds up to about a hundred tokens more. */
const blockTokens = 128;
/** Tokens of a step at most: vLLM's default for devices of this size (max_num_batched_tokens). */
export const stepRowsMax = 8192;
/** Requests of a run per client. The first requests of all clients arrive at once, and are counted too. */
const rounds = 10;
/** vLLM's default share of memory (gpu_memory_utilization), and its part besides weights and KV. */
const memoryShare = 0.9;
const reservedBytes = 3e9;

export interface SimulatedLatency {
  readonly ttftMs: number;
  readonly tpotMs: number;
}

/** Means over all requests of a run. */
export function simulatePoint(point: ServingPoint, deployment: Deployment, front: FrontendTimes): SimulatedLatency {
  const { concurrency } = point;
  const ended = runClosedLoop({
    clients: concurrency,
    requests: rounds * concurrency,
    lengths: (index) => ({
      inputTokens: spread(point.inputTokens, point.spread, 2 * index),
      outputTokens: Math.max(2, spread(point.outputTokens, point.spread, 2 * index + 1)),
    }),
    frontendUs: (tokens) => front.requestUs + front.tokenUs * tokens,
    instance: {
      cost: deployment.cost,
      blockTokens,
      blocks: kvBlocks(point, deployment),
      eviction: 'lru',
      limits: {
        tokensMax: stepRowsMax,
        sequencesMax: concurrency,
        logitRowsMax: concurrency + 1,
        stepUsDecoding: Number.MAX_SAFE_INTEGER,
        stepUsPrefill: Number.MAX_SAFE_INTEGER,
      },
      coalesce: true,
    },
  });
  return { ttftMs: mean(ended, ttftUs) / 1000, tpotMs: mean(ended, tpotUs) / 1000 };
}

function kvBlocks({ tensorParallel }: ServingPoint, { cost, memoryBytes, weightBytes }: Deployment): number {
  const kvBytes = (memoryBytes * memoryShare - reservedBytes) * tensorParallel - weightBytes;
  return Math.floor(kvBytes / cost.kvBytesPerToken / blockTokens);
}

function spread(tokens: number, share: number, index: number): number {
  return Math.round(tokens * (1 - share * counterUniform(1, 0, index)));
}

function ttftUs({ trace, firstTokenUs = 0 }: LengthRequest): number {
  return firstTokenUs - trace.arrivalUs;
}

function tpotUs({ trace, firstTokenUs = 0, lastTokenUs }: LengthRequest): number {
  return (lastTokenUs - firstTokenUs) / (trace.outputTokens - 1);
}

function mean(requests: readonly LengthRequest[], of: (request: LengthRequest) => number): number {
  return requests.reduce((sum, request) => sum + of(request), 0) / requests.length;
}
