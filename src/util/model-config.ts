// What a model's configuration says, whatever file it came from: the weights room fills it, the models room builds from it.

/** How rope frequencies are stretched for contexts longer than the first training's. */
export type RopeScaling =
  | { readonly kind: 'none' }
  /** Every frequency divided by `factor`. */
  | { readonly kind: 'linear'; readonly factor: number }
  /** Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between. */
  | {
      readonly kind: 'llama3';
      readonly factor: number;
      readonly lowFreqFactor: number;
      readonly highFreqFactor: number;
      readonly originalMaxPositions: number;
    }
  /** One divisor for each of the rotaryDim/2 frequencies, lowest dimension first (how GGUF files store llama3 scaling). */
  | { readonly kind: 'divisors'; readonly divisors: readonly number[] };

export interface Rope {
  readonly theta: number;
  readonly scaling: RopeScaling;
}

export type Activation = 'silu' | 'gelu' | 'gelu_tanh' | 'relu';

export type LayerAttention = 'full' | 'sliding';

/** Sizes are elements or counts; token positions are tokens. */
export interface ModelConfig {
  /** `model_type` of config.json or `general.architecture` of a GGUF file: known or not, the models room decides. */
  readonly architecture: string;
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Leading dimensions of a head that rope rotates: headDim unless the model says less. */
  readonly rotaryDim: number;
  readonly maxPositions: number;
  readonly normEps: number;
  /** The head shares the embedding's weights. */
  readonly tieEmbeddings: boolean;
  /** Biases of the q, k and v projections. */
  readonly attentionBias: boolean;
  /** Bias of the attention's output projection. */
  readonly attentionOutputBias: boolean;
  readonly mlpBias: boolean;
  readonly activation: Activation;
  readonly rope: Rope;
  /** Rope of the sliding layers where it differs from the others'. */
  readonly slidingRope: Rope | undefined;
  /** Tokens that a sliding layer sees, its own included. */
  readonly slidingWindow: number | undefined;
  /** One entry for each layer when layers differ; undefined: all slide if there is a window, else none. */
  readonly layerAttention: readonly LayerAttention[] | undefined;
  readonly bosId: number | undefined;
  /** End-of-sequence ids, without duplicates. */
  readonly eosIds: readonly number[];
}
