// BLOOM: ALiBi instead of position embeddings, a LayerNorm on the embeddings, one matrix for q, k and v.
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { layerAttention } from './attention.ts';

export function bloom(config: ModelConfig): Graph {
  const { hiddenSize, intermediateSize, vocabSize, biases } = config;
  const { eps } = config.norm;
  const b = new GraphBuilder();
  const table = 'transformer.word_embeddings';

  let h = b.layerNorm(b.embed(table, vocabSize, hiddenSize), 'transformer.word_embeddings_layernorm', eps);
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `transformer.h.${layer}`;
    const x = b.layerNorm(h, `${at}.input_layernorm`, eps);
    const qkv = b.linear(x, `${at}.self_attention.query_key_value`, 3 * hiddenSize, biases.qkv);
    const o = b.attention([qkv], layerAttention(config, layer));
    h = b.add(h, b.linear(o, `${at}.self_attention.dense`, hiddenSize, biases.attentionOutput));

    const y = b.layerNorm(h, `${at}.post_attention_layernorm`, eps);
    const inner = b.activate(b.linear(y, `${at}.mlp.dense_h_to_4h`, intermediateSize, biases.mlp), config.activation);
    h = b.add(h, b.linear(inner, `${at}.mlp.dense_4h_to_h`, hiddenSize, biases.mlp));
  }
  return b.head(b.layerNorm(h, 'transformer.ln_f', eps), config.tieEmbeddings ? table : 'lm_head', vocabSize);
}
