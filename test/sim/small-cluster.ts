// A small simulated cluster, and random traces for it.
import fc from 'fast-check';
import { RooflineCost } from '../../src/core/cost/roofline.ts';
import { type InstanceSpec, Simulation, type SimulationConfig } from '../../src/sim/engine/simulation.ts';
import type { TraceRequest } from '../../src/trace/request.ts';

export const blockTokens = 16;

export const cost = new RooflineCost({
  model: {
    layers: 2,
    hidden: 256,
    heads: 4,
    kvHeads: 2,
    headDim: 64,
    intermediate: 512,
    gated: true,
    vocabulary: 1000,
    tiedHead: true,
  },
  device: {
    memoryBytes: 8e6,
    memoryBytesPerSecond: 1e9,
    operationsPerSecond: 1e10,
    linkBytesPerSecond: 1e9,
    linkUs: 1,
  },
  efficiency: { compute: 1, memory: 1, link: 1, stepUs: 100, layerUs: 10 },
  tensorParallel: 1,
  pipelineParallel: 1,
  weightBytes: 2,
  kvBytes: 2,
  memoryShare: 1,
  stepRows: 0,
});

export const handOff = { layerWise: true, receiveTokens: 10_000, rechecksAdmission: false };

export const machine: InstanceSpec['machine'] = {
  cost,
  blockTokens,
  blocks: 24,
  eviction: 'lru',
  limits: { tokensMax: 128, logitRowsMax: 33, sequencesMax: 8, stepUsDecoding: 20_000, stepUsPrefill: 100_000 },
  coalesce: true,
  handOff,
};

export const nic = { bytesPerSecond: 1e9, us: 10 };

/** `count` instances of each role. */
export function cluster(
  counts: Partial<Record<InstanceSpec['role'], number>>,
  changes: Partial<InstanceSpec['machine']> = {},
): readonly InstanceSpec[] {
  const spec = { nic, machine: { ...machine, ...changes } };
  return (['prefill', 'decode', 'mixed'] as const).flatMap((role) =>
    Array.from({ length: counts[role] ?? 0 }, () => ({ ...spec, role })),
  );
}

export const config: SimulationConfig = {
  instances: cluster({ mixed: 2 }),
  linkBytesPerSecond: undefined,
  blockTokens,
  queueMax: 1_000,
  admission: { kind: 'none', slo: undefined, decodeUs: 1e6 },
  placement: { kind: 'cache-aware', seed: [1, 2], balancingThreshold: 1.5 },
  checking: true,
};

/** Prompts of a family share all full blocks but the last. */
export function requestOf(
  index: number,
  arrivalUs: number,
  inputTokens: number,
  outputTokens: number,
  family = index,
): TraceRequest {
  const full = Math.floor(inputTokens / blockTokens);
  const ids = Array.from({ length: Math.ceil(inputTokens / blockTokens) }, (_, i) =>
    i < full - 1 ? 1000 * family + i : 1_000_000 + 100 * index + i,
  );
  return { index, arrivalUs, inputTokens, outputTokens, blocks: Int32Array.from(ids) };
}

export function run(trace: readonly TraceRequest[], changes: Partial<SimulationConfig> = {}): Simulation {
  const simulation = new Simulation({ ...config, ...changes });
  for (const request of trace) simulation.arrive(request);
  simulation.finish();
  return simulation;
}

export const traces = fc
  .array(
    fc.record({
      gapUs: fc.integer({ min: 0, max: 30_000 }),
      input: fc.integer({ min: 1, max: 150 }),
      output: fc.integer({ min: 1, max: 60 }),
      family: fc.nat(3),
    }),
    { minLength: 1, maxLength: 40 },
  )
  .map((requests) => {
    let atUs = 0;
    return requests.map(({ gapUs, input, output, family }, index) => {
      atUs += gapUs;
      return requestOf(index, atUs, input, output, family);
    });
  });
