// Phi-3: Llama with q, k and v in one matrix, and gate and up in another.
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { layerAttention } from './attention.ts';

export function phi3(config: ModelConfig): Graph {
  const { hiddenSize, intermediateSize, vocabSize, heads, kvHeads, headDim, norm, activation } = config;
  const b = new GraphBuilder();
  const table = 'model.embed_tokens';

  let h = b.embed(table, vocabSize, hiddenSize);
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `model.layers.${layer}`;
    const x = b.rmsNorm(h, `${at}.input_layernorm`, norm);
    const qkv = b.linear(x, `${at}.self_attn.qkv_proj`, (heads + 2 * kvHeads) * headDim);
    const o = b.attention([qkv], layerAttention(config, layer));
    h = b.add(h, b.linear(o, `${at}.self_attn.o_proj`, hiddenSize));

    const y = b.rmsNorm(h, `${at}.post_attention_layernorm`, norm);
    const gateUp = b.linear(y, `${at}.mlp.gate_up_proj`, 2 * intermediateSize);
    h = b.add(h, b.linear(b.glu([gateUp], activation), `${at}.mlp.down_proj`, hiddenSize));
  }
  return b.head(b.rmsNorm(h, 'model.norm', norm), config.tieEmbeddings ? table : 'lm_head', vocabSize);
}
