// Runs whose times differ from any prediction: steps of uneven length, and requests of drawn lengths that share prefixes.
import { LinearCost } from '../../src/core/cost/linear-cost.ts';
import type { StepShape } from '../../src/core/protocol/step-shape.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { WorkloadGenerator } from '../../src/trace/workload/generator.ts';
import { scramble } from '../../src/util/scramble.ts';
import { pageTokens } from '../../src/util/step.ts';

/** Steps that vary by half and more, independently. */
export class UnevenCost extends LinearCost {
  #steps = 0;

  override stepUs(shape: StepShape): number {
    const spread = (scramble(++this.#steps) >>> 0) / 2 ** 32;
    return Math.round(super.stepUs(shape) * (0.8 + spread ** 4 * 2));
  }
}

export function drawnRequests(count: number, requestsPerSecond: number): TraceRequest[] {
  const generator = new WorkloadGenerator(
    {
      arrivals: { kind: 'poisson', requestsPerSecond },
      lengths: {
        kind: 'drawn',
        input: { kind: 'log-normal', mean: 200, variation: 0.5 },
        output: { kind: 'log-normal', mean: 12, variation: 0.5 },
      },
      ...{ long: undefined, prefixes: { families: 6, zipf: 1, share: 0.5 }, sessions: undefined, contextTokens: 1024 },
    },
    { seed: 5, blockTokens: pageTokens },
  );
  return Array.from({ length: count }, () => generator.next());
}
