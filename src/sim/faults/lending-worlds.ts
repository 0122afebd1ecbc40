// Chaos worlds whose instances lend memory to one another, with requests that no instance could hold alone.

import { queryRowBytes } from '../../core/cost/dist-attention.ts';
import { defaultLendingTimes } from '../../core/lending/times.ts';
import type { TraceRequest } from '../../trace/request.ts';
import type { Prng } from '../../util/prng.ts';
import type { SimulationConfig } from '../engine/simulation-config.ts';
import type { Fault } from './faults.ts';

export interface RequestWorld {
  readonly config: SimulationConfig;
  readonly trace: readonly TraceRequest[];
}

/** As small as requests are short: so memory runs out. */
const blocksMin = 12;
const blocksMax = 20;
const lentShareMax = 0.75;
const remoteAttentionPermilleMax = 300;
const rangeBlocks = 2;
const hostTokenUs = 5;
/** Most of the long prompts find memory to land in. */
const landingFactor = 2;
/** Who needs what others have waits for them, one after the other. */
const timeoutUs = 45_000_000;
const times = { ...defaultLendingTimes, settleUs: 200_000, remoteCacheUs: 800_000 };

/** @param gmanager the fault that may be injected besides */
export function withLending({ config, trace }: RequestWorld, prng: Prng, gmanager: Fault): RequestWorld {
  const blocks = prng.integer(blocksMin, blocksMax);
  const lendable = Math.floor(blocks * lentShareMax);
  const { length } = config.instances;
  const policy = {
    ...{
      lentShareMax,
      lowWaterBlocks: 2,
      highWaterBlocks: 7,
      recallBlocks: 1,
      loanBlocksMin: 2,
      remoteAttentionPermilleMax,
    },
    lookAheadUs: prng.chance(0.8) ? 100_000 : 0,
  };
  const hostBlocks = prng.chance(0.4) ? prng.integer(4, 12) : 0;
  const lendableHost = Math.floor((hostBlocks * lentShareMax) / rangeBlocks) * rangeBlocks;
  const handsOver = config.pipeline === undefined;
  const instances = config.instances.map((spec, instance) => {
    const borrowableBlocks =
      handsOver || spec.role === 'mixed' ? (lendable + lendableHost) * (length - 1) + hostBlocks : 0;
    const figures = { stagingBlocks: 8, hostBlocks, borrowableBlocks, rangeBlocks };
    const borrowing = { instance, policy, times, handsOver, ...figures };
    const landingTokens = spec.machine.handOff?.landingTokens ?? 0;
    const more = spec.machine.handOff && { ...spec.machine.handOff, landingTokens: landingFactor * landingTokens };
    return { ...spec, machine: { ...spec.machine, blocks, borrowing, ...(more && { handOff: more }) } };
  });
  const lending = {
    ...{ times, settles: true, settleBlocksMin: 1, settleBlocksMax: 8, remoteAttentionPermilleMax, layers: 2 },
    seed: trace.length,
    hostTokenUs: config.instances.map(() => hostTokenUs),
    queryRowBytes: queryRowBytes({ layers: 2, heads: 4, headDim: 64 }),
  };
  const alone = blocks * config.blockTokens;
  const longer = trace.map((request) =>
    handsOver && prng.chance(0.1) ? withLength(request, prng.integer(alone, 2 * alone), config.blockTokens) : request,
  );
  const restarts = prng.chance(0.7);
  const faults = config.faults && {
    ...config.faults,
    times: { ...config.faults.times, timeoutUs },
    faults: restarts ? [...config.faults.faults, gmanager] : config.faults.faults,
  };
  return { config: { ...config, instances, lending, faults }, trace: longer };
}

/** The same beginning, and a longer end of its own. */
function withLength(request: TraceRequest, inputTokens: number, blockTokens: number): TraceRequest {
  const { blocks, index } = request;
  const shared = Math.max(0, blocks.length - 2);
  const ids = Int32Array.from({ length: Math.ceil(inputTokens / blockTokens) }, (_, i) =>
    i < shared ? blocks[i] : 1_000_000 + 100 * index + i,
  );
  return { ...request, inputTokens, blocks: ids };
}
