// Llama 2 and 3.x, and what is built alike (SmolLM2): RMSNorm, rotary attention with grouped heads, SwiGLU.
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import type { RopeSpec } from '../graph/rope.ts';
import type { ModelConfig } from '../util/model-config.ts';

/** What sets Llama's relatives apart from it. */
export interface LlamaTraits {
  /** q and k are rms-normed per head before they turn. */
  readonly qkNorm: boolean;
}

export function llama(config: ModelConfig, traits: LlamaTraits = { qkNorm: false }): Graph {
  const { hiddenSize, intermediateSize, vocabSize, heads, kvHeads, headDim, biases } = config;
  const { eps } = config.norm;
  const b = new GraphBuilder();
  const rope = ropeOf(config);
  const table = 'model.embed_tokens.weight';
  const project = (x: number, name: string, rows: number, bias: boolean) =>
    b.linear(x, `${name}.weight`, rows, bias ? `${name}.bias` : undefined);

  let h = b.embed(table, vocabSize, hiddenSize);
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `model.layers.${layer}`;
    const attn = `${at}.self_attn`;
    const x = b.rmsNorm(h, `${at}.input_layernorm.weight`, eps);
    const q = project(x, `${attn}.q_proj`, heads * headDim, biases.qkv);
    const k = project(x, `${attn}.k_proj`, kvHeads * headDim, biases.qkv);
    const v = project(x, `${attn}.v_proj`, kvHeads * headDim, biases.qkv);
    const norms = traits.qkNorm ? { qNorm: `${attn}.q_norm.weight`, kNorm: `${attn}.k_norm.weight`, eps } : {};
    const o = b.attention([q, k, v], { heads, kvHeads, headDim, rope, ...norms });
    h = b.add(h, project(o, `${attn}.o_proj`, hiddenSize, biases.attentionOutput));

    const y = b.rmsNorm(h, `${at}.post_attention_layernorm.weight`, eps);
    const gate = project(y, `${at}.mlp.gate_proj`, intermediateSize, biases.mlp);
    const up = project(y, `${at}.mlp.up_proj`, intermediateSize, biases.mlp);
    h = b.add(h, project(b.swiglu(gate, up), `${at}.mlp.down_proj`, hiddenSize, biases.mlp));
  }
  return b.head(b.rmsNorm(h, 'model.norm.weight', eps), config.tieEmbeddings ? table : 'lm_head.weight', vocabSize);
}

function ropeOf({ positions, architecture }: ModelConfig): RopeSpec {
  if (positions.kind !== 'rope')
    throw new Error(`Cannot build the model: ${architecture} has rotary positions, not ${positions.kind}`);
  return { ...positions.rope, rotaryDim: positions.rotaryDim };
}
