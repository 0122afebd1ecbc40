// Gemma 2 and 3: scaled embeddings, norms before and after attention and MLP, GeGLU, local and global layers.
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { layerAttention } from './attention.ts';

/** Differences between the generations. */
interface GemmaTraits {
  /** q and k have an RMSNorm per head before the rotation. */
  readonly qkNorm: boolean;
}

function gemma(config: ModelConfig, traits: GemmaTraits): Graph {
  const { hiddenSize, intermediateSize, vocabSize, heads, kvHeads, headDim, norm, biases, activation } = config;
  const b = new GraphBuilder();
  const table = 'model.embed_tokens';

  let h = b.embed(table, vocabSize, hiddenSize, { scale: Math.sqrt(hiddenSize) });
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `model.layers.${layer}`;
    const attn = `${at}.self_attn`;
    const x = b.rmsNorm(h, `${at}.input_layernorm`, norm);
    const q = b.linear(x, `${attn}.q_proj`, heads * headDim, biases.qkv);
    const k = b.linear(x, `${attn}.k_proj`, kvHeads * headDim, biases.qkv);
    const v = b.linear(x, `${attn}.v_proj`, kvHeads * headDim, biases.qkv);
    const norms = traits.qkNorm ? { qNorm: `${attn}.q_norm`, kNorm: `${attn}.k_norm`, norm } : {};
    const o = b.attention([q, k, v], { ...layerAttention(config, layer), ...norms });
    const attended = b.linear(o, `${attn}.o_proj`, hiddenSize, biases.attentionOutput);
    h = b.add(h, b.rmsNorm(attended, `${at}.post_attention_layernorm`, norm));

    const y = b.rmsNorm(h, `${at}.pre_feedforward_layernorm`, norm);
    const gate = b.linear(y, `${at}.mlp.gate_proj`, intermediateSize);
    const up = b.linear(y, `${at}.mlp.up_proj`, intermediateSize);
    const down = b.linear(b.glu([gate, up], activation), `${at}.mlp.down_proj`, hiddenSize);
    h = b.add(h, b.rmsNorm(down, `${at}.post_feedforward_layernorm`, norm));
  }
  const head = config.tieEmbeddings ? table : 'lm_head';
  return b.head(b.rmsNorm(h, 'model.norm', norm), head, vocabSize, config.logitSoftcap);
}

/** Gemma 2: soft-capped attention scores and logits; every second layer is local, by the configuration. */
export function gemma2(config: ModelConfig): Graph {
  return gemma(config, { qkNorm: false });
}

/**
 * Gemma 3, its text part: norms over each head of q and k instead of the caps, and a separate rope for local layers.
 */
export function gemma3(config: ModelConfig): Graph {
  return gemma(config, { qkNorm: true });
}
