// Llama 2 and 3.x and models of the same structure (SmolLM2): RMSNorm, RoPE with grouped-query attention, SwiGLU.
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { layerAttention } from './attention.ts';

/** Differences of related architectures. */
export interface LlamaTraits {
  /** q and k have an RMSNorm per head before the rotation. */
  readonly qkNorm: boolean;
}

export function llama(config: ModelConfig, traits: LlamaTraits = { qkNorm: false }): Graph {
  const { hiddenSize, intermediateSize, vocabSize, heads, kvHeads, headDim, norm, biases, activation } = config;
  const b = new GraphBuilder();
  const table = 'model.embed_tokens';

  let h = b.embed(table, vocabSize, hiddenSize);
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `model.layers.${layer}`;
    const attn = `${at}.self_attn`;
    const x = b.rmsNorm(h, `${at}.input_layernorm`, norm);
    const q = b.linear(x, `${attn}.q_proj`, heads * headDim, biases.qkv);
    const k = b.linear(x, `${attn}.k_proj`, kvHeads * headDim, biases.qkv);
    const v = b.linear(x, `${attn}.v_proj`, kvHeads * headDim, biases.qkv);
    const norms = traits.qkNorm ? { qNorm: `${attn}.q_norm`, kNorm: `${attn}.k_norm`, norm } : {};
    const o = b.attention([q, k, v], { ...layerAttention(config, layer), ...norms });
    h = b.add(h, b.linear(o, `${attn}.o_proj`, hiddenSize, biases.attentionOutput));

    const y = b.rmsNorm(h, `${at}.post_attention_layernorm`, norm);
    const gate = b.linear(y, `${at}.mlp.gate_proj`, intermediateSize, biases.mlp);
    const up = b.linear(y, `${at}.mlp.up_proj`, intermediateSize, biases.mlp);
    h = b.add(h, b.linear(b.glu([gate, up], activation), `${at}.mlp.down_proj`, hiddenSize, biases.mlp));
  }
  return b.head(b.rmsNorm(h, 'model.norm', norm), config.tieEmbeddings ? table : 'lm_head', vocabSize);
}

/** Mistral: Llama, with a sliding window if the configuration has one. */
export function mistral(config: ModelConfig): Graph {
  return llama(config);
}

/** Qwen2 and 2.5: Llama with biases on q, k and v. */
export function qwen2(config: ModelConfig): Graph {
  return llama({ ...config, biases: { qkv: true, attentionOutput: false, mlp: false } });
}

/** Qwen3: Llama with an rms norm over each head of q and of k. */
export function qwen3(config: ModelConfig): Graph {
  return llama(config, { qkNorm: true });
}
