// Gemma 3, its text half: norms over each head of q and k in place of the caps, and a rope of their own for local layers.
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { gemma } from './gemma.ts';

export function gemma3(config: ModelConfig): Graph {
  return gemma(config, { qkNorm: true });
}
