// Mistral: Llama, with a sliding window if the configuration has one.
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { llama } from './llama.ts';

export function mistral(config: ModelConfig): Graph {
  return llama(config);
}
