// Names of the tensors of Hugging Face checkpoints in GGUF files.

const decoder = {
  'input_layernorm': 'attn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'post_attention_layernorm': 'ffn_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
};
const gemma = {
  ...decoder,
  'post_attention_layernorm': 'post_attention_norm',
  'pre_feedforward_layernorm': 'ffn_norm',
  'post_feedforward_layernorm': 'post_ffw_norm',
};
const phi3 = { ...decoder, 'self_attn.qkv_proj': 'attn_qkv', 'mlp.gate_up_proj': 'ffn_up' };
const gpt2 = { 'ln_1': 'attn_norm', 'attn.c_attn': 'attn_qkv', 'attn.c_proj': 'attn_output', 'ln_2': 'ffn_norm', 'mlp.c_fc': 'ffn_up', 'mlp.c_proj': 'ffn_down' };

const layerStems = { llama: decoder, qwen2: decoder, qwen3: decoder, gemma2: gemma, gemma3: gemma, phi3, gpt2 };
const topStems = { 'embed_tokens': 'token_embd', 'norm': 'output_norm', 'lm_head': 'output', 'wte': 'token_embd', 'wpe': 'position_embd', 'ln_f': 'output_norm' };

/** @returns {string | undefined} undefined for a tensor that GGUF files do not contain */
export function tensorName(/** @type {string} */ architecture, /** @type {string} */ name) {
  const [, layer, stem, kind] = /^(?:model\.|transformer\.)?(?:(?:layers|h)\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(name) ?? [];
  const to = layer === undefined ? topStems[stem] : layerStems[architecture]?.[stem];
  if (to === undefined) return undefined;
  return layer === undefined ? `${to}.${kind}` : `blk.${layer}.${to}.${kind}`;
}
