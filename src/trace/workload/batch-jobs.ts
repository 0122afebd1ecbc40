// Batch jobs that arrive beside a workload, until it ends.
import type { TraceRequest } from '../request.ts';
import { type Workload, WorkloadGenerator } from './generator.ts';
import type { Lengths } from './lengths.ts';

export interface BatchWorkload {
  readonly requestsPerSecond: number;
  readonly input: Lengths;
  readonly output: Lengths;
}

/** Index of the first job, above those of any trace. */
const firstIndex = 2 ** 32;
const noBlocks = new Int32Array(0);

/** Poisson arrivals of prompts without shared blocks. A pure function of (workload, seed). */
export class BatchJobStream {
  readonly #generator: WorkloadGenerator;
  #next: TraceRequest;

  constructor({ requestsPerSecond, input, output }: BatchWorkload, seed: number) {
    const workload: Workload = {
      arrivals: { kind: 'poisson', requestsPerSecond },
      lengths: { kind: 'drawn', input, output },
      long: undefined,
      prefixes: undefined,
      sessions: undefined,
      contextTokens: 2 ** 31 - 1,
    };
    // Jobs do not use block ids: one block is enough for any prompt.
    this.#generator = new WorkloadGenerator(workload, { seed: (seed ^ 0x5bd1e995) >>> 0, blockTokens: 2 ** 31 - 1 });
    this.#next = this.#generator.next();
  }

  /** The requests, each preceded by the jobs that arrive before it. */
  merge(requests: readonly TraceRequest[]): readonly TraceRequest[] {
    const merged: TraceRequest[] = [];
    for (const request of requests) {
      while (this.#next.arrivalUs <= request.arrivalUs) {
        const { index, arrivalUs, inputTokens, outputTokens } = this.#next;
        merged.push({
          index: firstIndex + index,
          arrivalUs,
          inputTokens,
          outputTokens,
          blocks: noBlocks,
          batch: true,
        });
        this.#next = this.#generator.next();
      }
      merged.push(request);
    }
    return merged;
  }
}
