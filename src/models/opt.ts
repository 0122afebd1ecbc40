// OPT: learned positions with an offset, LayerNorm before attention and MLP, ReLU.
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { layerAttention, positionTable } from './attention.ts';

export function opt(config: ModelConfig): Graph {
  const { hiddenSize, intermediateSize, vocabSize, biases } = config;
  const { eps } = config.norm;
  const b = new GraphBuilder();
  const decoder = 'model.decoder';
  const table = `${decoder}.embed_tokens`;

  let h = b.embed(table, vocabSize, hiddenSize, { positions: positionTable(config, `${decoder}.embed_positions`) });
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `${decoder}.layers.${layer}`;
    const attn = `${at}.self_attn`;
    const x = b.layerNorm(h, `${at}.self_attn_layer_norm`, eps);
    const qkv = ['q_proj', 'k_proj', 'v_proj'].map((name) => b.linear(x, `${attn}.${name}`, hiddenSize, biases.qkv));
    const o = b.attention(qkv, layerAttention(config, layer));
    h = b.add(h, b.linear(o, `${attn}.out_proj`, hiddenSize, biases.attentionOutput));

    const y = b.layerNorm(h, `${at}.final_layer_norm`, eps);
    const inner = b.linear(y, `${at}.fc1`, intermediateSize, biases.mlp);
    h = b.add(h, b.linear(b.activate(inner, config.activation), `${at}.fc2`, hiddenSize, biases.mlp));
  }
  return b.head(
    b.layerNorm(h, `${decoder}.final_layer_norm`, eps),
    config.tieEmbeddings ? table : 'lm_head',
    vocabSize,
  );
}
