// Architectures by the name that config.json (`model_type`) or a GGUF file (`general.architecture`) gives them.
import type { Graph } from '../graph/graph.ts';
import type { ModelConfig } from '../util/model-config.ts';
import { llama } from './llama.ts';
import { qwen2 } from './qwen2.ts';
import { qwen3 } from './qwen3.ts';

const architectures: Readonly<Record<string, (config: ModelConfig) => Graph>> = { llama, qwen2, qwen3 };

export const knownArchitectures: readonly string[] = Object.keys(architectures).sort();

/** @throws Error naming the architectures known, or what in the configuration they do not cover */
export function buildGraph(config: ModelConfig): Graph {
  const build = Object.hasOwn(architectures, config.architecture) ? architectures[config.architecture] : undefined;
  if (build === undefined) {
    throw new Error(
      `Cannot build the model: unknown architecture: ${config.architecture} (known: ${knownArchitectures.join(', ')})`,
    );
  }
  const missing = unsupported(config);
  if (missing !== undefined)
    throw new Error(`Cannot build the model: not supported with ${config.architecture}: ${missing}`);
  return build(config);
}

/** Configurations that would give other values than the model means are refused, never ignored. */
function unsupported(config: ModelConfig): string | undefined {
  if (config.activation !== 'silu') return `activation ${config.activation}`;
  // Keys are stored in pairs of dimensions.
  if (config.headDim % 2 !== 0) return `an odd head_dim: ${config.headDim}`;
  const { window, layers } = config.attention;
  const slides = layers?.includes('sliding') ?? window !== undefined;
  if (slides && (window ?? Infinity) < config.maxPositions) return `a sliding window of ${window} tokens`;
  return undefined;
}
