// Qwen3: Llama with an rms norm over each head of q and of k, and a head size of its own.
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { llama } from './llama.ts';

export function qwen3(config: ModelConfig): Graph {
  return llama(config, { qkNorm: true });
}
