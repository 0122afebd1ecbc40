// Gemma 2: attention scores and logits are soft-capped, every second layer is local (all by the configuration).
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { gemma } from './gemma.ts';

export function gemma2(config: ModelConfig): Graph {
  return gemma(config, { qkNorm: false });
}
