// The keys of config.json that are read, for all model families.
import { z } from 'zod';
import { layersMax, sizeMax } from '../config-limits.ts';

const size = z.int().min(1).max(sizeMax);
const tokenId = z.int().min(0).max(sizeMax);
const flag = z.boolean().nullish();
const share = z.number().positive().max(1).nullish();
const positive = z.number().positive().nullish();

export const configSchema = z.object({
  model_type: z.string().min(1).max(100),
  vocab_size: size,
  hidden_size: size.nullish(),
  n_embd: size.nullish(),
  n_embed: size.nullish(),
  intermediate_size: size.nullish(),
  n_inner: size.nullish(),
  ffn_dim: size.nullish(),
  num_hidden_layers: size.max(layersMax).nullish(),
  n_layer: size.max(layersMax).nullish(),
  num_attention_heads: size.nullish(),
  n_head: size.nullish(),
  num_key_value_heads: size.nullish(),
  head_dim: size.nullish(),
  max_position_embeddings: size.nullish(),
  n_positions: size.nullish(),
  seq_length: size.nullish(),
  rms_norm_eps: share,
  layer_norm_epsilon: share,
  layer_norm_eps: share,
  tie_word_embeddings: flag,
  attention_bias: flag,
  mlp_bias: flag,
  enable_bias: flag,
  hidden_act: z.string().nullish(),
  hidden_activation: z.string().nullish(),
  activation_function: z.string().nullish(),
  rope_theta: z.unknown().optional(),
  rotary_emb_base: z.unknown().optional(),
  rope_scaling: z.unknown().optional(),
  rope_parameters: z.unknown().optional(),
  rope_local_base_freq: z.unknown().optional(),
  original_max_position_embeddings: z.unknown().optional(),
  partial_rotary_factor: share,
  rotary_pct: share,
  sliding_window: size.nullish(),
  use_sliding_window: flag,
  max_window_layers: z.int().min(0).max(sizeMax).nullish(),
  sliding_window_pattern: size.nullish(),
  _sliding_window_pattern: size.nullish(),
  layer_types: z.array(z.string()).nullish(),
  query_pre_attn_scalar: positive,
  attn_logit_softcapping: positive,
  final_logit_softcapping: positive,
  scale_attn_weights: flag,
  use_parallel_residual: flag,
  type_vocab_size: size.max(256).nullish(),
  architectures: z.array(z.string()).nullish(),
  num_labels: size.nullish(),
  id2label: z.record(z.string(), z.unknown()).nullish(),
  classifier_from_token: z.array(z.string()).nullish(),
  is_matryoshka: flag,
  matryoshka_dimensions: z.array(size).min(1).nullish(),
  bos_token_id: tokenId.nullish(),
  eos_token_id: z.union([tokenId, z.array(tokenId)]).nullish(),
});

export type RawConfig = z.infer<typeof configSchema>;

export const generationSchema = z.object({
  temperature: z.number().min(0).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  top_k: z.int().min(0).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  repetition_penalty: z.number().positive().nullish(),
  max_new_tokens: z.int().min(1).nullish(),
  eos_token_id: z.union([tokenId, z.array(tokenId)]).nullish(),
});
