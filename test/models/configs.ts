// A small configuration for graph tests.
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
  maxPositions: 256,
  norm: { eps: 1e-5, gainOffset: 0 },
  tieEmbeddings: true,
  biases: { qkv: false, attentionOutput: false, mlp: false },
  activation: 'silu',
  parallelResidual: false,
  positions: {
    kind: 'rope',
    rotaryDim: 16,
    rope: { theta: 10_000, scaling: { kind: 'none' } },
    slidingRope: undefined,
  },
  attention: { scale: 0.25, softcap: undefined, window: undefined, layers: undefined },
  logitSoftcap: undefined,
  bosId: 1,
  eosIds: [2],
};
