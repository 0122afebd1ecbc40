// Gemma 2: soft-capped attention scores and logits, every second layer local (all from the configuration).
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { gemma } from './gemma.ts';

export function gemma2(config: ModelConfig): Graph {
  return gemma(config, { qkNorm: false });
}
