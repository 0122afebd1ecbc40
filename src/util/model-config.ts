// A model's configuration, whatever file it came from: weights/ reads it, models/ builds the graph from it.

/** How rope frequencies are stretched for contexts longer than in the original training. */
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
  /**
   * One divisor for each of the rotaryDim/2 frequencies, lowest dimension first (how GGUF files store llama3 scaling).
   */
  | { readonly kind: 'divisors'; readonly divisors: readonly number[] }
  /**
   * YaRN (Peng et al.): divides frequencies that turn less than betaSlow times in the original context, keeps those
   * above betaFast, with a ramp between.
   */
  | {
      readonly kind: 'yarn';
      readonly factor: number;
      readonly betaFast: number;
      readonly betaSlow: number;
      /** The ramp starts and ends at whole dimensions. */
      readonly truncate: boolean;
      readonly originalMaxPositions: number;
      /** Factor of the rotated q and k, against flat scores. */
      readonly magnitude: number;
    }
  /**
   * LongRoPE (Phi-3): one divisor for each frequency, from one of two sets. The served context length selects the set
   * for all positions.
   */
  | {
      readonly kind: 'longrope';
      /** Used up to originalMaxPositions. */
      readonly shortDivisors: readonly number[];
      readonly longDivisors: readonly number[];
      readonly originalMaxPositions: number;
      readonly magnitude: number;
    };

export interface Rope {
  readonly theta: number;
  readonly scaling: RopeScaling;
}

export type Activation = 'silu' | 'gelu' | 'gelu_tanh' | 'relu';

export type LayerAttention = 'full' | 'sliding';

/** How a model encodes positions. */
export type Positions =
  | {
      readonly kind: 'rope';
      /** Leading dimensions of a head that rope rotates: headDim by default. */
      readonly rotaryDim: number;
      readonly rope: Rope;
      /** Rope of the sliding layers if it differs from the others'. */
      readonly slidingRope: Rope | undefined;
    }
  /** A table of maxPositions + offset rows, added to the embeddings; a token at position p takes row p + offset. */
  | { readonly kind: 'learned'; readonly offset: number }
  /** A bias of each head's scores that falls with distance. */
  | { readonly kind: 'alibi' };

export interface AttentionConfig {
  /** Factor of q k^T before the softmax: 1 / sqrt(headDim) by default. */
  readonly scale: number;
  /** Scores s become softcap * tanh(s / softcap). */
  readonly softcap: number | undefined;
  /** Tokens that a sliding layer attends to, including its own; undefined: no layer slides. */
  readonly window: number | undefined;
  /** One entry for each layer if layers differ; undefined: all slide if there is a window, else none. */
  readonly layers: readonly LayerAttention[] | undefined;
}

/** Linear layers with biases. */
export interface Biases {
  readonly qkv: boolean;
  /** The attention's output projection. */
  readonly attentionOutput: boolean;
  readonly mlp: boolean;
}

/** How the hidden states of a text become one vector: that of the last or first token, or their mean. */
export type Pooling = 'last' | 'mean' | 'cls';

/** A model that computes whole texts at once and generates none. */
export interface EncoderConfig {
  /** Rows of the table of token types. */
  readonly tokenTypes: number;
  /** Labels of a classifier over pairs of texts (cross-encoder); undefined: the model ends with hidden states. */
  readonly labels?: number | undefined;
}

/**
 * How a decoder ranks a document: by the last hidden state times one row of a tensor. `answers`: the head's row of the
 * token "yes" minus that of "no"; `label`: `score.weight` of a classifier; `rows`: those two rows of the head, which
 * `cls.output.weight` of a GGUF file keeps.
 */
export type RankingHead = 'answers' | 'label' | 'rows';

/** What the files of a model state about embeddings. */
export interface StatedEmbedding {
  readonly pooling?: Pooling | undefined;
  /** Lengths to which vectors may be cut (Matryoshka); `any`: all. */
  readonly matryoshka?: readonly number[] | 'any' | undefined;
}

/** Sizes are elements or counts. Properties common to all models of an architecture are in models/ only. */
export interface ModelConfig {
  /** `model_type` of config.json or `general.architecture` of a GGUF file, spelled as in models/; known or not. */
  readonly architecture: string;
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly maxPositions: number;
  /** `gainOffset` is added to stored gains: 1 for Gemma's safetensors, which hold w of (1 + w), else 0. */
  readonly norm: { readonly eps: number; readonly gainOffset: 0 | 1 };
  /** The head shares the embedding's weights. */
  readonly tieEmbeddings: boolean;
  readonly biases: Biases;
  readonly activation: Activation;
  /** Attention and MLP read the same input, and their outputs are added (GPT-NeoX). */
  readonly parallelResidual: boolean;
  readonly positions: Positions;
  readonly attention: AttentionConfig;
  /** Final logits l become logitSoftcap * tanh(l / logitSoftcap). */
  readonly logitSoftcap: number | undefined;
  /** Undefined: the model generates text. */
  readonly encoder?: EncoderConfig | undefined;
  readonly embedding?: StatedEmbedding | undefined;
  /** Undefined: the model is no reranker, or a cross-encoder. */
  readonly ranking?: RankingHead | undefined;
  readonly bosId: number | undefined;
  /** End-of-sequence ids, without duplicates. */
  readonly eosIds: readonly number[];
}
