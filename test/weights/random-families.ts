// Configurations and row orders as each family's checkpoints store them: the inverse of what src/weights reads.
import type { RandomModelSpec, RandomTensor } from './random-model.ts';

/** `model_type` of config.json. */
export type FamilyName =
  | 'llama'
  | 'mistral'
  | 'qwen2'
  | 'qwen3'
  | 'gemma2'
  | 'gemma3_text'
  | 'phi3'
  | 'gpt2'
  | 'opt'
  | 'bloom'
  | 'gpt_neox';

/** config.json of a model, with the keys that its family's class writes. */
export function configJson(spec: RandomModelSpec): Record<string, unknown> {
  const { architecture, vocabSize, tieEmbeddings } = spec;
  const common = {
    model_type: architecture,
    vocab_size: vocabSize,
    tie_word_embeddings: tieEmbeddings,
    bos_token_id: 1,
    eos_token_id: 2,
  };
  return { ...common, ...sizes(spec), ...traits(spec) };
}

function sizes(spec: RandomModelSpec): Record<string, unknown> {
  switch (spec.architecture) {
    case 'gpt2':
      return {
        n_embd: spec.hiddenSize,
        n_inner: spec.intermediateSize,
        n_layer: spec.layers,
        n_head: spec.heads,
        n_positions: spec.maxPositions,
        layer_norm_epsilon: 1e-5,
      };
    case 'bloom':
      return {
        n_embed: spec.hiddenSize,
        n_layer: spec.layers,
        num_attention_heads: spec.heads,
        seq_length: spec.maxPositions,
        layer_norm_epsilon: 1e-5,
      };
    default:
      return {
        hidden_size: spec.hiddenSize,
        [spec.architecture === 'opt' ? 'ffn_dim' : 'intermediate_size']: spec.intermediateSize,
        num_hidden_layers: spec.layers,
        num_attention_heads: spec.heads,
        num_key_value_heads: spec.kvHeads,
        head_dim: spec.headDim,
        max_position_embeddings: spec.maxPositions,
      };
  }
}

function traits({ architecture, window, headDim }: RandomModelSpec): Record<string, unknown> {
  const rotary = { rms_norm_eps: 1e-5, rope_theta: 10_000, hidden_act: 'silu' };
  switch (architecture) {
    case 'mistral':
    case 'phi3':
      return { ...rotary, sliding_window: window ?? null };
    case 'gemma2':
      return {
        ...rotary,
        sliding_window: window,
        hidden_activation: 'gelu_pytorch_tanh',
        query_pre_attn_scalar: headDim + 8,
        attn_logit_softcapping: 5,
        final_logit_softcapping: 4,
      };
    case 'gemma3_text':
      return {
        ...rotary,
        sliding_window: window,
        sliding_window_pattern: 3,
        hidden_activation: 'gelu_pytorch_tanh',
        query_pre_attn_scalar: headDim,
        rope_local_base_freq: 100,
        rope_scaling: { rope_type: 'linear', factor: 8 },
      };
    case 'gpt2':
      return { activation_function: 'gelu_new' };
    case 'opt':
      return { activation_function: 'relu', do_layer_norm_before: true };
    case 'bloom':
      return { apply_residual_connection_post_layernorm: false };
    case 'gpt_neox':
      return { hidden_act: 'gelu', rotary_pct: 0.25, layer_norm_eps: 1e-5, use_parallel_residual: true };
    default:
      return rotary;
  }
}

/**
 * A tensor as checkpoints store it: GPT-2's projections transposed, q, k and v of BLOOM and GPT-NeoX interleaved by
 * head.
 */
export function asStored({ architecture, heads }: RandomModelSpec, tensor: RandomTensor): RandomTensor {
  const { name, shape, values } = tensor;
  const [rows, columns = 1] = shape;
  if (architecture === 'gpt2' && /\.c_\w+\.weight$/.test(name)) {
    const turned = values.map((_, index) => values[(index % rows) * columns + Math.floor(index / rows)]);
    return { name, shape: [columns, rows], values: turned };
  }
  if (!name.includes('query_key_value')) return tensor;
  const headRows = rows / heads / 3;
  const stored = new Float32Array(values.length);
  for (let row = 0; row < rows; row++) {
    const [part, head, inHead] = [
      Math.floor(row / headRows / heads),
      Math.floor(row / headRows) % heads,
      row % headRows,
    ];
    const to = (head * 3 + part) * headRows + inHead;
    stored.set(values.subarray(row * columns, (row + 1) * columns), to * columns);
  }
  return { name, shape, values: stored };
}
