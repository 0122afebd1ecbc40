// Gemma 3, text model: norms over each head of q and k instead of softcaps, and a separate RoPE for local layers.
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { gemma } from './gemma.ts';

export function gemma3(config: ModelConfig): Graph {
  return gemma(config, { qkNorm: true });
}
