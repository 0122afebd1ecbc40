// What GGUF calls each tensor and how it orders rows, by architecture: a further architecture is a row of `architectures`.

interface GgufArchitecture {
  /** Stem in a `blk.N.` name, to stem under `model.layers.N.`; weights and biases alike. */
  readonly layerStems: Readonly<Record<string, string>>;
  /** q and k rows were reordered by the converter so that rope turns neighbouring pairs. */
  readonly pairedRope: boolean;
}

const topNames: Readonly<Record<string, string>> = {
  'token_embd.weight': 'model.embed_tokens.weight',
  'output_norm.weight': 'model.norm.weight',
  'output.weight': 'lm_head.weight',
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

const architectures: ReadonlyMap<string, GgufArchitecture> = new Map([
  ['llama', { layerStems: decoderStems, pairedRope: true }],
  ['qwen2', { layerStems: decoderStems, pairedRope: false }],
  [
    'qwen3',
    {
      layerStems: { ...decoderStems, attn_q_norm: 'self_attn.q_norm', attn_k_norm: 'self_attn.k_norm' },
      pairedRope: false,
    },
  ],
]);

/** The Hugging Face name of a GGUF tensor; names that the tables do not know stay as they are. */
export function canonicalName(architecture: string, name: string): string {
  const known = architectures.get(architecture);
  if (known === undefined) return name;
  if (Object.hasOwn(topNames, name)) return topNames[name] ?? name;
  const match = /^blk\.(\d+)\.([a-z_]+)\.(weight|bias)$/.exec(name);
  const stem = match?.[2];
  if (match === null || stem === undefined || !Object.hasOwn(known.layerStems, stem)) return name;
  return `model.layers.${match[1]}.${known.layerStems[stem]}.${match[3]}`;
}

/** Whose heads a GGUF tensor's rows were reordered within; undefined: rows are in Hugging Face order. */
export function reorderedHeads(architecture: string, name: string): 'query' | 'key' | undefined {
  if (architectures.get(architecture)?.pairedRope !== true) return undefined;
  const match = /^blk\.\d+\.attn_([qk])\.(weight|bias)$/.exec(name);
  if (match === null) return undefined;
  return match[1] === 'q' ? 'query' : 'key';
}
