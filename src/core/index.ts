// The public interface of `kvasir/policy`: the pure block cache, batcher and step cost model.

export { StepCost } from './cost/step-cost.ts';
export { BlockCache, type BlockCacheConfig } from './kvcache/block-cache.ts';
export { type BlockRoot, HashChain, rootDigest } from './kvcache/block-hash.ts';
export { BlockTable, HeldBlocks } from './kvcache/block-table.ts';
export { type BlockUse, type EvictionKind, type EvictionOrder, evictionOrders } from './kvcache/eviction.ts';
export type { BlockId } from './protocol/ids.ts';
export type { BlockChain } from './protocol/kv-events.ts';
export type { StepPredictor, StepShape } from './protocol/step-shape.ts';
export { Batcher } from './scheduler/batching/batcher.ts';
export {
  Sequence,
  type SequenceContent,
  type SequenceSpec,
  type SequenceState,
} from './scheduler/batching/sequence.ts';
export type { BatchLimits } from './scheduler/batching/step-budget.ts';
export { TokenContent } from './scheduler/batching/token-content.ts';
