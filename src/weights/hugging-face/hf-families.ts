// What each `model_type` implies beyond its keys: defaults of its Hugging Face class, and values fixed by the type.
import type { Biases, LayerAttention } from '../../util/model-config.ts';
import type { RawConfig } from './hf-schema.ts';

/** Allowed values of each key, if it is set. */
export type AllowedValues = Readonly<Record<string, readonly unknown[]>>;

export interface Family {
  /** Name in src/models. */
  readonly architecture: string;
  /** Values of keys that the file leaves out; an explicit null stays null. */
  readonly defaults?: Partial<RawConfig>;
  readonly gainOffset?: 1;
  /** The model ignores `attn_logit_softcapping`. */
  readonly ignoresScoreCap?: true;
  /** RoPE unless given. */
  readonly positions?: { readonly kind: 'learned'; readonly offset: number } | { readonly kind: 'alibi' };
  readonly biases?: (raw: RawConfig) => Biases;
  /** Which layers slide when there is a window and no `layer_types`. undefined: all; 'never': no layer has a window. */
  readonly slides?: ((raw: RawConfig, layer: number) => boolean) | 'never';
  /** The MLP size defaults to four times the hidden size. */
  readonly fourfoldMlp?: true;
  /** Computes whole texts with bidirectional attention, and generates none. */
  readonly isEncoder?: true;
  /** Keys for which another value means an unsupported variant. */
  readonly fixed?: (raw: RawConfig) => AllowedValues;
}

const uniformBiases = (bias: boolean): Biases => ({ qkv: bias, attentionOutput: bias, mlp: bias });
const biased = (): Biases => uniformBiases(true);
const unbiased = (): Biases => uniformBiases(false);

function attentionBiased(raw: RawConfig): Biases {
  const bias = raw.attention_bias ?? false;
  return { qkv: bias, attentionOutput: bias, mlp: raw.mlp_bias ?? false };
}

const gemma: Partial<RawConfig> = {
  head_dim: 256,
  tie_word_embeddings: true,
  query_pre_attn_scalar: 256,
  sliding_window: 4096,
  rms_norm_eps: 1e-6,
  hidden_activation: 'gelu_pytorch_tanh',
};

const qwenSlides = (raw: RawConfig, layer: number): boolean => layer >= (raw.max_window_layers ?? 28);
const qwenDefaults: Partial<RawConfig> = { use_sliding_window: false };
const causalOnly = (): AllowedValues => ({ use_bidirectional_attention: [false, null] });

const gemma3: Family = {
  architecture: 'gemma3',
  defaults: {
    ...gemma,
    vocab_size: 262_208,
    num_attention_heads: 8,
    num_key_value_heads: 4,
    max_position_embeddings: 131_072,
    rope_theta: 1_000_000,
    rope_local_base_freq: 10_000,
  },
  gainOffset: 1,
  ignoresScoreCap: true,
  slides: (raw, layer) => (layer + 1) % (raw.sliding_window_pattern ?? raw._sliding_window_pattern ?? 6) !== 0,
  fixed: causalOnly,
};

const families: ReadonlyMap<string, Family> = new Map<string, Family>([
  ['llama', { architecture: 'llama', slides: 'never' }],
  ['mistral', { architecture: 'mistral', defaults: { sliding_window: 4096 }, biases: unbiased }],
  [
    'qwen2',
    {
      architecture: 'qwen2',
      defaults: qwenDefaults,
      biases: () => ({ qkv: true, attentionOutput: false, mlp: false }),
      slides: qwenSlides,
    },
  ],
  ['qwen3', { architecture: 'qwen3', defaults: { ...qwenDefaults, head_dim: 128 }, slides: qwenSlides }],
  [
    'gemma2',
    {
      architecture: 'gemma2',
      defaults: {
        ...gemma,
        attn_logit_softcapping: 50,
        final_logit_softcapping: 30,
        max_position_embeddings: 8192,
      },
      gainOffset: 1,
      slides: (_, layer) => layer % 2 === 0,
      fixed: causalOnly,
    },
  ],
  ['gemma3', gemma3],
  ['gemma3_text', gemma3],
  ['phi3', { architecture: 'phi3', biases: unbiased }],
  [
    'gpt2',
    {
      architecture: 'gpt2',
      defaults: { tie_word_embeddings: true, activation_function: 'gelu_new' },
      positions: { kind: 'learned', offset: 0 },
      biases: biased,
      slides: 'never',
      fourfoldMlp: true,
      fixed: () => ({ add_cross_attention: [false, null], scale_attn_by_inverse_layer_idx: [false, null] }),
    },
  ],
  [
    'opt',
    {
      architecture: 'opt',
      defaults: { tie_word_embeddings: true, activation_function: 'relu', layer_norm_eps: 1e-5 },
      positions: { kind: 'learned', offset: 2 },
      biases: (raw) => uniformBiases(raw.enable_bias ?? true),
      slides: 'never',
      fixed: (raw) => ({
        do_layer_norm_before: [true, null],
        word_embed_proj_dim: [raw.hidden_size, null],
        layer_norm_elementwise_affine: [true, null],
        _remove_final_layer_norm: [false, null],
      }),
    },
  ],
  [
    'bloom',
    {
      architecture: 'bloom',
      defaults: {
        tie_word_embeddings: true,
        hidden_act: 'gelu_pytorch_tanh',
        seq_length: 2048,
        layer_norm_epsilon: 1e-5,
      },
      positions: { kind: 'alibi' },
      biases: biased,
      slides: 'never',
      fourfoldMlp: true,
      fixed: () => ({ apply_residual_connection_post_layernorm: [false, null] }),
    },
  ],
  [
    'bert',
    {
      architecture: 'bert',
      isEncoder: true,
      defaults: { layer_norm_eps: 1e-12, type_vocab_size: 2, hidden_act: 'gelu' },
      positions: { kind: 'learned', offset: 0 },
      biases: biased,
      slides: 'never',
      fixed: () => ({ is_decoder: [false, null], position_embedding_type: ['absolute', null] }),
    },
  ],
  [
    'nomic_bert',
    {
      architecture: 'nomic_bert',
      isEncoder: true,
      defaults: {
        n_positions: 2048,
        layer_norm_epsilon: 1e-12,
        type_vocab_size: 2,
        activation_function: 'swiglu',
        rotary_emb_base: 1000,
      },
      biases: unbiased,
      slides: 'never',
      fixed: () => ({
        activation_function: ['swiglu', null],
        rotary_emb_fraction: [1, null],
        rotary_emb_interleaved: [false, null],
        rotary_emb_scale_base: [null],
        rotary_scaling_factor: [null],
        prenorm: [false, null],
        use_rms_norm: [false, null],
        parallel_block: [false, null],
        qkv_proj_bias: [false, null],
        mlp_fc1_bias: [false, null],
        mlp_fc2_bias: [false, null],
        num_experts: [0, null],
      }),
    },
  ],
  [
    'gpt_neox',
    {
      architecture: 'gpt_neox',
      defaults: { rotary_pct: 0.25, layer_norm_eps: 1e-5, hidden_act: 'gelu', use_parallel_residual: true },
      biases: (raw) => ({ qkv: raw.attention_bias ?? true, attentionOutput: raw.attention_bias ?? true, mlp: true }),
      slides: 'never',
    },
  ],
]);

/** The family of a model type. An unknown type is read like Llama; src/models then refuses it by name. */
export function familyOf(settings: Readonly<Record<string, unknown>>): Required<Pick<Family, 'biases'>> & Family {
  const modelType = typeof settings.model_type === 'string' ? settings.model_type : '';
  return { biases: attentionBiased, ...(families.get(modelType) ?? { architecture: modelType }) };
}

/** Keys that no family may set to another value, because they are not implemented. */
export const fixedEverywhere: AllowedValues = {
  clip_qkv: [null],
  is_encoder_decoder: [false, null],
  quantization_config: [null],
};

/** `full` or `sliding` for each layer; undefined when all layers are the same. */
export function slidingLayers(family: Family, raw: RawConfig, layers: number): readonly LayerAttention[] | undefined {
  const { slides } = family;
  if (slides === undefined || slides === 'never') return undefined;
  return Array.from({ length: layers }, (_, layer) => (slides(raw, layer) ? 'sliding' : 'full'));
}
