// What GGUF calls each tensor and how it orders rows, by architecture: a further architecture is a row of `architectures`.

interface GgufArchitecture {
  /** Stem outside the layers to Hugging Face's stem; weights and biases alike. */
  readonly topStems: Readonly<Record<string, string>>;
  /** What a layer's stems begin with, before its number. */
  readonly layers: string;
  /** Stem in a `blk.N.` name, to stem in a layer; weights and biases alike. */
  readonly layerStems: Readonly<Record<string, string>>;
  /** q and k rows were reordered by the converter so that rope turns neighbouring pairs. */
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
]);

/** The Hugging Face name of a GGUF tensor; names that the tables do not know stay as they are. */
export function canonicalName(architecture: string, name: string): string {
  const known = architectures.get(architecture);
  const parts = /^(?:blk\.(\d+)\.)?([a-z_]+)\.(weight|bias)$/.exec(name);
  if (known === undefined || parts === null) return name;
  const [, layer, stem, kind] = parts;
  const stems = layer === undefined ? known.topStems : known.layerStems;
  if (stem === undefined || !Object.hasOwn(stems, stem)) return name;
  return `${layer === undefined ? '' : `${known.layers}${layer}.`}${stems[stem]}.${kind}`;
}

/** Whose heads a GGUF tensor's rows were reordered within; undefined: rows are in Hugging Face order. */
export function reorderedHeads(architecture: string, name: string): 'query' | 'key' | undefined {
  if (architectures.get(architecture)?.pairedRope !== true) return undefined;
  const match = /^blk\.\d+\.attn_([qk])\.(weight|bias)$/.exec(name);
  if (match === null) return undefined;
  return match[1] === 'q' ? 'query' : 'key';
}
