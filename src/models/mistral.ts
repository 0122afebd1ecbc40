// Mistral: Llama whose layers may see a sliding window alone (the configuration says so).
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { llama } from './llama.ts';

export function mistral(config: ModelConfig): Graph {
  return llama(config);
}
