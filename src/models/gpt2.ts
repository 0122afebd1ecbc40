// GPT-2: learned positions, LayerNorm, one matrix for q, k and v, an MLP without a gate.
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { layerAttention, positionTable } from './attention.ts';

export function gpt2(config: ModelConfig): Graph {
  const { hiddenSize, intermediateSize, vocabSize, biases } = config;
  const { eps } = config.norm;
  const b = new GraphBuilder();
  const table = 'transformer.wte';

  let h = b.embed(table, vocabSize, hiddenSize, { positions: positionTable(config, 'transformer.wpe') });
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `transformer.h.${layer}`;
    const x = b.layerNorm(h, `${at}.ln_1`, eps);
    const qkv = b.linear(x, `${at}.attn.c_attn`, 3 * hiddenSize, biases.qkv);
    const o = b.attention([qkv], layerAttention(config, layer));
    h = b.add(h, b.linear(o, `${at}.attn.c_proj`, hiddenSize, biases.attentionOutput));

    const y = b.layerNorm(h, `${at}.ln_2`, eps);
    const inner = b.linear(y, `${at}.mlp.c_fc`, intermediateSize, biases.mlp);
    h = b.add(h, b.linear(b.activate(inner, config.activation), `${at}.mlp.c_proj`, hiddenSize, biases.mlp));
  }
  return b.head(b.layerNorm(h, 'transformer.ln_f', eps), config.tieEmbeddings ? table : 'lm_head', vocabSize);
}
