// A small configuration to build graphs from.
import type { ModelConfig } from '../../src/util/model-config.ts';

export const smallConfig: ModelConfig = {
  architecture: 'llama',
  vocabSize: 96,
  hiddenSize: 64,
  intermediateSize: 160,
  layers: 3,
  heads: 4,
  kvHeads: 2,
  headDim: 16,
  rotaryDim: 16,
  maxPositions: 256,
  normEps: 1e-5,
  tieEmbeddings: true,
  attentionBias: false,
  attentionOutputBias: false,
  mlpBias: false,
  activation: 'silu',
  rope: { theta: 10_000, scaling: { kind: 'none' } },
  slidingRope: undefined,
  slidingWindow: undefined,
  layerAttention: undefined,
  bosId: 1,
  eosIds: [2],
};
