// Qwen2 and 2.5: Llama with biases on q, k and v (set in every Qwen2 configuration).
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { llama } from './llama.ts';

export function qwen2(config: ModelConfig): Graph {
  return llama({ ...config, biases: { qkv: true, attentionOutput: false, mlp: false } });
}
