// Encoders: BERT and Nomic BERT. Every row attends to all keys, norms follow the sums, and there is no head for tokens.
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph, PositionTable, TensorId } from '../graph/graph.ts';
import type { EncoderConfig, ModelConfig } from '../util/model-config.ts';
import { layerAttention, positionTable } from './attention.ts';

const tokenTypes = 'embeddings.token_type_embeddings.weight';

/** BERT: learned positions, token types, biases, GELU. A cross-encoder ends with the scores of its labels. */
export function bert(config: ModelConfig): Graph {
  const { hiddenSize, intermediateSize, vocabSize, norm, activation } = config;
  const encoder = encoderOf(config);
  const b = new GraphBuilder();
  const types = { name: tokenTypes, rows: encoder.tokenTypes };
  const positions = { ...positionTable(config, 'embeddings.position_embeddings'), types };

  let h = b.embed('embeddings.word_embeddings', vocabSize, hiddenSize, { positions });
  h = b.layerNorm(h, 'embeddings.LayerNorm', norm.eps);
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `encoder.layer.${layer}`;
    const qkv = ['query', 'key', 'value'].map((name) => b.linear(h, `${at}.attention.self.${name}`, hiddenSize, true));
    const o = b.attention(qkv, { ...layerAttention(config, layer), bidirectional: true });
    h = b.add(h, b.linear(o, `${at}.attention.output.dense`, hiddenSize, true));
    h = b.layerNorm(h, `${at}.attention.output.LayerNorm`, norm.eps);

    const inner = b.activate(b.linear(h, `${at}.intermediate.dense`, intermediateSize, true), activation);
    h = b.add(h, b.linear(inner, `${at}.output.dense`, hiddenSize, true));
    h = b.layerNorm(h, `${at}.output.LayerNorm`, norm.eps);
  }
  return b.encoded(encoder.labels === undefined ? h : labelScores(b, h, hiddenSize, encoder.labels));
}

/** The pooler and the classifier over the first token. */
function labelScores(b: GraphBuilder, h: TensorId, hiddenSize: number, labels: number): TensorId {
  const pooled = b.softcap(b.linear(h, 'pooler.dense', hiddenSize, true), 1);
  return b.linear(pooled, 'classifier', labels, true);
}

/** Nomic BERT: rotary positions, token types, SwiGLU, no biases in linear layers. */
export function nomicBert(config: ModelConfig): Graph {
  const { hiddenSize, intermediateSize, vocabSize, norm, activation, maxPositions: rows } = config;
  const b = new GraphBuilder();
  const types = { name: tokenTypes, rows: encoderOf(config).tokenTypes };
  const positions: PositionTable = { name: undefined, rows, offset: 0, types };

  let h = b.embed('embeddings.word_embeddings', vocabSize, hiddenSize, { positions });
  h = b.layerNorm(h, 'emb_ln', norm.eps);
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `encoder.layers.${layer}`;
    const qkv = b.linear(h, `${at}.attn.Wqkv`, 3 * hiddenSize);
    const o = b.attention([qkv], { ...layerAttention(config, layer), bidirectional: true });
    h = b.layerNorm(b.add(h, b.linear(o, `${at}.attn.out_proj`, hiddenSize)), `${at}.norm1`, norm.eps);

    const gate = b.linear(h, `${at}.mlp.fc12`, intermediateSize);
    const up = b.linear(h, `${at}.mlp.fc11`, intermediateSize);
    const down = b.linear(b.glu([gate, up], activation), `${at}.mlp.fc2`, hiddenSize);
    h = b.layerNorm(b.add(h, down), `${at}.norm2`, norm.eps);
  }
  return b.encoded(h);
}

function encoderOf({ encoder, architecture }: ModelConfig): EncoderConfig {
  if (encoder === undefined) throw new Error(`Cannot build the model: ${architecture} is no encoder`);
  return encoder;
}
