// Lending among the instances of a recording, by the rules of live instances.

import { queryRowBytes } from '../../../core/cost/dist-attention.ts';
import type { InstanceSpec, SimulationConfig } from '../../../sim/engine/simulation.ts';
import type { Recording } from '../../../trace/recording/reader.ts';
import { pageTokens } from '../../../util/step.ts';
import {
  lendableOf,
  livePolicy,
  liveTimes,
  rangeBlocks,
  settlementOf,
  stagingBlocksOf,
} from '../../options/lending-rules.ts';
import { UsageError } from '../../usage-error.ts';
import type { ReplaySettings } from './replay-settings.ts';

/** @throws UsageError where host memory was lent: a recording does not state how much */
export function withRecordedLending(
  { header, instances }: Recording,
  settings: ReplaySettings,
  specs: readonly InstanceSpec[],
): Pick<SimulationConfig, 'instances' | 'lending'> {
  if (!settings.borrow) return { instances: specs, lending: undefined };
  if (settings.lendHost > 0)
    throw new UsageError('Cannot replay --lend-host: recordings do not contain lent host memory');
  const times = liveTimes(settings);
  const lendable = instances.map(({ role, blocks = 0 }) => (role === 'store' ? 0 : lendableOf(blocks, settings)));
  const all = lendable.reduce((sum, blocks) => sum + blocks, 0);
  const lenders = specs.map((spec, instance): InstanceSpec => {
    if (spec.role === 'store') return spec;
    const borrowing = {
      ...{ instance, policy: livePolicy(instances[instance].blocks ?? 0, settings), times },
      stagingBlocks: stagingBlocksOf(instances[instance].blocks ?? 0, rangeBlocks),
      rangeBlocks,
      borrowableBlocks: all - lendable[instance],
    };
    return { ...spec, machine: { ...spec.machine, borrowing } };
  });
  const lending = {
    ...{ times, settles: settings.settle, seed: 0 },
    ...{ settleBlocksMin: settlementOf(settings, pageTokens).blocksMin, rangeBlocks },
    remoteAttentionPermilleMax: Math.round(settings.remoteAttentionShare * 1000),
    ...{ queryRowBytes: queryRowBytes(header), layers: header.layers },
    remoteAttention: settings.remoteAttention,
  };
  return { instances: lenders, lending };
}
