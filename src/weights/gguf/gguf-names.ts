// GGUF tensor names and row orders by architecture. A new architecture is a row of `architectures`.

interface GgufArchitecture {
  /** GGUF stem to Hugging Face stem, outside the layers, for weights and biases. */
  readonly topStems: Readonly<Record<string, string>>;
  /** Prefix of a layer's Hugging Face names, before the layer number. */
  readonly layers: string;
  /** GGUF stem in `blk.N.` to Hugging Face stem in the layer, for weights and biases. */
  readonly layerStems: Readonly<Record<string, string>>;
  /** The converter reordered the rows of q and k so that RoPE rotates adjacent pairs. */
  readonly pairedRope?: true;
}

const topStems: Readonly<Record<string, string>> = {
  token_embd: 'model.embed_tokens',
  output_norm: 'model.norm',
  output: 'lm_head',
};

const decoderStems: Readonly<Record<string, string>> = {
  attn_norm: 'input_layernorm',
  attn_q: 'self_attn.q_proj',
  attn_k: 'self_attn.k_proj',
  attn_v: 'self_attn.v_proj',
  attn_output: 'self_attn.o_proj',
  ffn_norm: 'post_attention_layernorm',
  ffn_gate: 'mlp.gate_proj',
  ffn_up: 'mlp.up_proj',
  ffn_down: 'mlp.down_proj',
};

const headNorms: Readonly<Record<string, string>> = {
  attn_q_norm: 'self_attn.q_norm',
  attn_k_norm: 'self_attn.k_norm',
};

const gemmaStems: Readonly<Record<string, string>> = {
  ...decoderStems,
  post_attention_norm: 'post_attention_layernorm',
  ffn_norm: 'pre_feedforward_layernorm',
  post_ffw_norm: 'post_feedforward_layernorm',
};

const decoder = { topStems, layers: 'model.layers.' };

const encoderStems = {
  token_embd: 'embeddings.word_embeddings',
  token_types: 'embeddings.token_type_embeddings',
};

const architectures: ReadonlyMap<string, GgufArchitecture> = new Map<string, GgufArchitecture>([
  ['llama', { ...decoder, layerStems: decoderStems, pairedRope: true }],
  ['qwen2', { ...decoder, layerStems: decoderStems }],
  ['qwen3', { ...decoder, layerStems: { ...decoderStems, ...headNorms } }],
  ['gemma2', { ...decoder, layerStems: gemmaStems }],
  ['gemma3', { ...decoder, layerStems: { ...gemmaStems, ...headNorms } }],
  [
    'phi3',
    {
      ...decoder,
      layerStems: { ...decoderStems, attn_qkv: 'self_attn.qkv_proj', ffn_up: 'mlp.gate_up_proj' },
    },
  ],
  [
    'gpt2',
    {
      topStems: {
        token_embd: 'transformer.wte',
        position_embd: 'transformer.wpe',
        output_norm: 'transformer.ln_f',
        output: 'lm_head',
      },
      layers: 'transformer.h.',
      layerStems: {
        attn_norm: 'ln_1',
        attn_qkv: 'attn.c_attn',
        attn_output: 'attn.c_proj',
        ffn_norm: 'ln_2',
        ffn_up: 'mlp.c_fc',
        ffn_down: 'mlp.c_proj',
      },
    },
  ],
  [
    'bert',
    {
      topStems: {
        ...encoderStems,
        position_embd: 'embeddings.position_embeddings',
        token_embd_norm: 'embeddings.LayerNorm',
      },
      layers: 'encoder.layer.',
      layerStems: {
        attn_q: 'attention.self.query',
        attn_k: 'attention.self.key',
        attn_v: 'attention.self.value',
        attn_output: 'attention.output.dense',
        attn_output_norm: 'attention.output.LayerNorm',
        ffn_up: 'intermediate.dense',
        ffn_down: 'output.dense',
        layer_output_norm: 'output.LayerNorm',
      },
    },
  ],
  [
    'nomic-bert',
    {
      topStems: { ...encoderStems, token_embd_norm: 'emb_ln' },
      layers: 'encoder.layers.',
      layerStems: {
        attn_qkv: 'attn.Wqkv',
        attn_output: 'attn.out_proj',
        attn_output_norm: 'norm1',
        ffn_gate: 'mlp.fc12',
        ffn_up: 'mlp.fc11',
        ffn_down: 'mlp.fc2',
        layer_output_norm: 'norm2',
      },
    },
  ],
]);

/** The Hugging Face name of a GGUF tensor. A name that the tables lack is returned unchanged. */
export function canonicalName(architecture: string, name: string): string {
  const known = architectures.get(architecture);
  const parts = /^(?:blk\.(\d+)\.)?([a-z_]+)\.(weight|bias)$/.exec(name);
  if (known === undefined || parts === null) return name;
  const [, layer, stem, kind] = parts;
  const stems = layer === undefined ? known.topStems : known.layerStems;
  if (stem === undefined || !Object.hasOwn(stems, stem)) return name;
  return `${layer === undefined ? '' : `${known.layers}${layer}.`}${stems[stem]}.${kind}`;
}

/** Which heads' rows the converter reordered in this tensor; undefined: rows are in Hugging Face order. */
export function reorderedHeads(architecture: string, name: string): 'query' | 'key' | undefined {
  if (architectures.get(architecture)?.pairedRope !== true) return undefined;
  const match = /^blk\.\d+\.attn_([qk])\.(weight|bias)$/.exec(name);
  if (match === null) return undefined;
  return match[1] === 'q' ? 'query' : 'key';
}
