// Architectures by their name in config.json (`model_type`) or a GGUF file (`general.architecture`).
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { bloom } from './bloom.ts';
import { bert, nomicBert } from './encoders.ts';
import { gemma2, gemma3 } from './gemma.ts';
import { gptNeox } from './gpt-neox.ts';
import { gpt2 } from './gpt2.ts';
import { llama, mistral, qwen2, qwen3 } from './llama.ts';
import { opt } from './opt.ts';
import { phi3 } from './phi3.ts';

const architectures: Readonly<Record<string, (config: ModelConfig) => Graph>> = {
  bert,
  bloom,
  gemma2,
  gemma3,
  gpt2,
  gpt_neox: gptNeox,
  llama,
  mistral,
  nomic_bert: nomicBert,
  opt,
  phi3,
  qwen2,
  qwen3,
};

export const knownArchitectures: readonly string[] = Object.keys(architectures).sort();

/**
 * @param context longest sequence served, in tokens: a window of at least this length is dropped
 * @throws Error that names the known architectures, or the unsupported setting
 */
export function buildGraph(config: ModelConfig, context = config.maxPositions): Graph {
  const build = Object.hasOwn(architectures, config.architecture) ? architectures[config.architecture] : undefined;
  if (build === undefined) {
    throw new Error(
      `Cannot build the model: unknown architecture: ${config.architecture} (known: ${knownArchitectures.join(', ')})`,
    );
  }
  // Kernels store keys in pairs of dimensions.
  if (config.headDim % 2 !== 0)
    throw new Error(
      `Cannot build the model: not supported with ${config.architecture}: an odd head_dim: ${config.headDim}`,
    );
  return build(windowWithin(config, context));
}

/** Removes a window that the context never exceeds. Sliding layers keep their own RoPE. */
function windowWithin(config: ModelConfig, context: number): ModelConfig {
  const { attention } = config;
  if (attention.window === undefined || attention.window < context) return config;
  return { ...config, attention: { ...attention, window: undefined } };
}
