// The public face of the policy room: `kvasir/policy`.
export { Batcher } from './batching/batcher.ts';
export { Sequence, type SequenceContent, type SequenceSpec, type SequenceState } from './batching/sequence.ts';
export type { BatchLimits } from './batching/step-budget.ts';
export { TokenContent } from './batching/token-content.ts';
export { BlockCache, type BlockCacheConfig } from './blocks/block-cache.ts';
export type { BlockChain } from './blocks/block-chain.ts';
export { type BlockRoot, HashChain, rootDigest } from './blocks/block-hash.ts';
export type { BlockId } from './blocks/block-pool.ts';
export { BlockTable, HeldBlocks } from './blocks/block-table.ts';
export { type BlockUse, type EvictionKind, type EvictionOrder, evictionOrders } from './blocks/eviction.ts';
export { StepCost } from './cost/step-cost.ts';
export type { StepPredictor, StepShape } from './cost/step-shape.ts';
