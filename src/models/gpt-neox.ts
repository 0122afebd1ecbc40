// GPT-NeoX and Pythia: attention and MLP in parallel on one residual, RoPE on part of each head.
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { layerAttention } from './attention.ts';

export function gptNeox(config: ModelConfig): Graph {
  const { hiddenSize, intermediateSize, vocabSize, biases, parallelResidual } = config;
  const { eps } = config.norm;
  const b = new GraphBuilder();
  const table = 'gpt_neox.embed_in';

  let h = b.embed(table, vocabSize, hiddenSize);
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `gpt_neox.layers.${layer}`;
    const mlp = (from: number): number => {
      const y = b.layerNorm(from, `${at}.post_attention_layernorm`, eps);
      const inner = b.linear(y, `${at}.mlp.dense_h_to_4h`, intermediateSize, biases.mlp);
      return b.linear(b.activate(inner, config.activation), `${at}.mlp.dense_4h_to_h`, hiddenSize, biases.mlp);
    };
    const x = b.layerNorm(h, `${at}.input_layernorm`, eps);
    const qkv = b.linear(x, `${at}.attention.query_key_value`, 3 * hiddenSize, biases.qkv);
    const o = b.attention([qkv], layerAttention(config, layer));
    const attended = b.linear(o, `${at}.attention.dense`, hiddenSize, biases.attentionOutput);
    if (parallelResidual) {
      const mlpOutput = mlp(h);
      h = b.add(b.add(h, attended), mlpOutput);
    } else {
      h = b.add(h, attended);
      h = b.add(h, mlp(h));
    }
  }
  return b.head(
    b.layerNorm(h, 'gpt_neox.final_layer_norm', eps),
    config.tieEmbeddings ? table : 'embed_out',
    vocabSize,
  );
}
