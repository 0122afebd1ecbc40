// Rotary position tables: the inverse frequencies of each scaling kind, and cos | sin per position.
import type { Rope, RopeScaling } from '../util/model-config.ts';

export interface RopeSpec extends Rope {
  /** Dimensions of a head that turn, from the first on; even. */
  readonly rotaryDim: number;
}

/** (rotaryDim / 2) angles per position. */
export function inverseFrequencies(spec: RopeSpec): Float64Array {
  const count = spec.rotaryDim / 2;
  return Float64Array.from({ length: count }, (_, i) => scaled(spec.theta ** (-i / count), i, spec.scaling));
}

function scaled(frequency: number, index: number, scaling: RopeScaling): number {
  switch (scaling.kind) {
    case 'none':
      return frequency;
    case 'linear':
      return frequency / scaling.factor;
    case 'divisors':
      return frequency / (scaling.divisors[index] ?? 1);
    case 'llama3': {
      const turns = (scaling.originalMaxPositions * frequency) / (2 * Math.PI);
      const kept = (turns - scaling.lowFreqFactor) / (scaling.highFreqFactor - scaling.lowFreqFactor);
      const smooth = Math.min(1, Math.max(0, kept));
      return (1 - smooth) * (frequency / scaling.factor) + smooth * frequency;
    }
  }
}

/** (positions, rotaryDim): cos of rotaryDim / 2 angles, then sin of them; computed in float64. */
export function ropeTable(spec: RopeSpec, positions: number): Float32Array {
  const frequencies = inverseFrequencies(spec);
  const half = frequencies.length;
  const table = new Float32Array(positions * spec.rotaryDim);
  for (let position = 0; position < positions; position++) {
    const row = position * spec.rotaryDim;
    for (let i = 0; i < half; i++) {
      const angle = position * frequencies[i];
      table[row + i] = Math.cos(angle);
      table[row + half + i] = Math.sin(angle);
    }
  }
  return table;
}
