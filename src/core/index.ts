// The public interface of `kvasir/policy`: the pure block cache, batcher and step cost model, and the types of policies.

export { StepCost } from './cost/step-cost.ts';
export { BlockCache, type BlockCacheConfig } from './kvcache/block-cache.ts';
export { type BlockRoot, HashChain, rootDigest } from './kvcache/block-hash.ts';
export { BlockTable, HeldBlocks } from './kvcache/block-table.ts';
export type { PrefixMatches } from './kvcache/events/prefix-index.ts';
export {
  type BlockUse,
  type EvictionKind,
  type EvictionOrder,
  type EvictionPolicy,
  type EvictionRule,
  evictionOrders,
  type FutureUses,
  type RankedBlock,
} from './kvcache/eviction.ts';
export type { ClusterView } from './protocol/cluster-view.ts';
export type { BlockId } from './protocol/ids.ts';
export type { BlockChain } from './protocol/kv-events.ts';
export type { StepPredictor, StepShape } from './protocol/step-shape.ts';
export type { AdmissionPolicy, JudgedRequest, Loads } from './router/admission/admission-policy.ts';
export type {
  PlacementChoice,
  PlacementCosts,
  PlacementPolicy,
  PlacementQuery,
  TransferCosts,
} from './router/placement/placement.ts';
export { Batcher } from './scheduler/batching/batcher.ts';
export {
  type BatchingKind,
  type BatchingPolicy,
  type BatchingRule,
  batchingOrders,
  type WaitingSequence,
} from './scheduler/batching/batching-order.ts';
export {
  Sequence,
  type SequenceContent,
  type SequenceSpec,
  type SequenceState,
} from './scheduler/batching/sequence.ts';
export type { BatchLimits } from './scheduler/batching/step-budget.ts';
export { TokenContent } from './scheduler/batching/token-content.ts';
