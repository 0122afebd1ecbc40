// Rotary position tables: inverse frequencies of each scaling kind, and cos | sin per position.

import { assertNever } from '../util/assert-never.ts';
import type { Rope, RopeScaling } from '../util/model-config.ts';

export interface RopeSpec extends Rope {
  /** Rotated dimensions of a head, the first ones; even. */
  readonly rotaryDim: number;
}

/** (rotaryDim / 2) angles per position. @param context longest sequence served, in tokens */
export function inverseFrequencies(spec: RopeSpec, context: number): Float64Array {
  const count = spec.rotaryDim / 2;
  return Float64Array.from({ length: count }, (_, i) => scaled(spec, spec.theta ** (-i / count), i, context));
}

function scaled(spec: RopeSpec, frequency: number, index: number, context: number): number {
  const { scaling } = spec;
  switch (scaling.kind) {
    case 'none':
      return frequency;
    case 'linear':
      return frequency / scaling.factor;
    case 'divisors':
      return frequency / (scaling.divisors[index] ?? 1);
    case 'longrope': {
      const { shortDivisors, longDivisors, originalMaxPositions } = scaling;
      return frequency / ((context > originalMaxPositions ? longDivisors : shortDivisors)[index] ?? 1);
    }
    case 'yarn':
      return blended(frequency, scaling.factor, 1 - yarnRamp(spec, scaling, index));
    case 'llama3': {
      const turns = (scaling.originalMaxPositions * frequency) / (2 * Math.PI);
      const kept = (turns - scaling.lowFreqFactor) / (scaling.highFreqFactor - scaling.lowFreqFactor);
      return blended(frequency, scaling.factor, clamp01(kept));
    }
    default:
      assertNever(scaling);
  }
}

/** Interpolates between the frequency divided by the factor (kept = 0) and the original frequency (kept = 1). */
function blended(frequency: number, factor: number, kept: number): number {
  return (1 - kept) * (frequency / factor) + kept * frequency;
}

/** 0 for dimensions with more than betaFast rotations over the original positions, 1 for fewer than betaSlow. */
function yarnRamp(
  { theta, rotaryDim }: RopeSpec,
  scaling: Extract<RopeScaling, { readonly kind: 'yarn' }>,
  index: number,
): number {
  const dimensionOf = (turns: number): number =>
    (rotaryDim * Math.log(scaling.originalMaxPositions / (turns * 2 * Math.PI))) / (2 * Math.log(theta));
  const [first, last] = [dimensionOf(scaling.betaFast), dimensionOf(scaling.betaSlow)];
  const low = Math.max(scaling.truncate ? Math.floor(first) : first, 0);
  const high = Math.min(scaling.truncate ? Math.ceil(last) : last, rotaryDim - 1);
  return clamp01((index - low) / (high === low ? 0.001 : high - low));
}

function clamp01(value: number): number {
  return Math.min(1, Math.max(0, value));
}

/**
 * (positions, rotaryDim): cos of rotaryDim / 2 angles, then sin of them, times the scaling's magnitude; computed in
 * float64.
 * @param positions length of the longest sequence served
 */
export function ropeTable(spec: RopeSpec, positions: number): Float32Array {
  const frequencies = inverseFrequencies(spec, positions);
  const { scaling } = spec;
  const magnitude = scaling.kind === 'yarn' || scaling.kind === 'longrope' ? scaling.magnitude : 1;
  const half = frequencies.length;
  const table = new Float32Array(positions * spec.rotaryDim);
  for (let position = 0; position < positions; position++) {
    const row = position * spec.rotaryDim;
    for (let i = 0; i < half; i++) {
      const angle = position * frequencies[i];
      table[row + i] = magnitude * Math.cos(angle);
      table[row + half + i] = magnitude * Math.sin(angle);
    }
  }
  return table;
}
