// Qwen3: Llama with an RMSNorm over each head of q and of k, and an independent head size.
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { llama } from './llama.ts';

export function qwen3(config: ModelConfig): Graph {
  return llama(config, { qkNorm: true });
}
