// Attention and position options of one layer, from the configuration, for the graph builder.
import type { AttentionOptions } from '../graph/builder.ts';
import type { PositionTable } from '../graph/graph.ts';
import type { RopeSpec } from '../graph/rope.ts';
import type { ModelConfig } from '../util/model-config.ts';

export function layerAttention(config: ModelConfig, layer: number): AttentionOptions {
  const { heads, kvHeads, headDim, positions, attention } = config;
  const sliding = slides(config, layer);
  return {
    heads,
    kvHeads,
    headDim,
    scale: attention.scale,
    softcap: attention.softcap,
    window: sliding ? attention.window : undefined,
    rope: ropeOf(config, sliding),
    alibi: positions.kind === 'alibi',
  };
}

/** The stored table of learned positions. */
export function positionTable(config: ModelConfig, stem: string): PositionTable {
  const { positions, maxPositions, architecture } = config;
  if (positions.kind !== 'learned')
    throw new Error(`Cannot build the model: ${architecture} requires learned positions, not ${positions.kind}`);
  return { name: `${stem}.weight`, rows: maxPositions + positions.offset, offset: positions.offset };
}

function slides({ attention }: ModelConfig, layer: number): boolean {
  if (attention.layers !== undefined) return attention.layers[layer] === 'sliding';
  return attention.window !== undefined;
}

function ropeOf({ positions }: ModelConfig, sliding: boolean): RopeSpec | undefined {
  if (positions.kind !== 'rope') return undefined;
  const { rope, slidingRope, rotaryDim } = positions;
  return { ...(sliding ? (slidingRope ?? rope) : rope), rotaryDim };
}
