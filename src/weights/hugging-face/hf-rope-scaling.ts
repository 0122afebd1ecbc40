// RoPE scaling settings of a config.json, by kind.
import { z } from 'zod';
import type { RopeScaling } from '../../util/model-config.ts';
import { ModelFileError } from '../errors.ts';

const positive = z.number().positive();
const divisors = z.array(positive).nullish();

export const ropeSchema = z.object({
  rope_type: z.string().nullish(),
  type: z.string().nullish(),
  rope_theta: positive.nullish(),
  factor: positive.nullish(),
  low_freq_factor: positive.nullish(),
  high_freq_factor: positive.nullish(),
  original_max_position_embeddings: positive.nullish(),
  partial_rotary_factor: positive.max(1).nullish(),
  attention_factor: positive.nullish(),
  beta_fast: positive.nullish(),
  beta_slow: positive.nullish(),
  mscale: z.number().nullish(),
  mscale_all_dim: z.number().nullish(),
  truncate: z.boolean().nullish(),
  short_factor: divisors,
  long_factor: divisors,
});

export type RawRope = z.infer<typeof ropeSchema>;

/** Model values that scaling needs, and the location of the settings for errors. */
export interface RopeSource {
  readonly file: string;
  readonly key: string;
  readonly rotaryDim: number;
  readonly maxPositions: number;
  /** Original maximum positions, when the configuration names them outside the RoPE settings. */
  readonly originalMaxPositions: number | undefined;
}

const knownKinds = ['default', 'linear', 'dynamic', 'llama3', 'yarn', 'longrope'];

export function scalingOf(source: RopeSource, raw: RawRope): RopeScaling {
  const kind = raw.rope_type ?? raw.type ?? 'default';
  switch (kind) {
    case 'default':
    // Changes only positions beyond the model's maximum, which are not served.
    case 'dynamic':
      return { kind: 'none' };
    case 'linear':
      return { kind: 'linear', factor: need(source, raw, kind, 'factor') };
    case 'llama3':
      return llama3(source, raw);
    case 'yarn':
      return yarn(source, raw);
    case 'longrope':
    case 'su':
      return longrope(source, raw);
    default:
      return fail(source, undefined, `rope scaling "${kind}" is not supported: known are ${knownKinds.join(', ')}`);
  }
}

function llama3(source: RopeSource, raw: RawRope): RopeScaling {
  const kind = 'llama3';
  const lowFreqFactor = need(source, raw, kind, 'low_freq_factor');
  const highFreqFactor = need(source, raw, kind, 'high_freq_factor');
  if (highFreqFactor <= lowFreqFactor)
    fail(
      source,
      'high_freq_factor',
      `high_freq_factor ${highFreqFactor} is not above low_freq_factor ${lowFreqFactor}`,
    );
  const factor = need(source, raw, kind, 'factor');
  const originalMaxPositions = need(source, raw, kind, 'original_max_position_embeddings');
  return { kind, factor, lowFreqFactor, highFreqFactor, originalMaxPositions };
}

function yarn(source: RopeSource, raw: RawRope): RopeScaling {
  const originalMaxPositions = originalPositions(source, raw) ?? source.maxPositions;
  const factor = raw.factor ?? source.maxPositions / originalMaxPositions;
  const { mscale, mscale_all_dim: mscaleAll } = raw;
  const magnitudeFor = (weight: number): number => (factor <= 1 ? 1 : 0.1 * weight * Math.log(factor) + 1);
  return {
    kind: 'yarn',
    factor,
    betaFast: raw.beta_fast ?? 32,
    betaSlow: raw.beta_slow ?? 1,
    truncate: raw.truncate ?? true,
    originalMaxPositions,
    magnitude:
      raw.attention_factor ?? (mscale && mscaleAll ? magnitudeFor(mscale) / magnitudeFor(mscaleAll) : magnitudeFor(1)),
  };
}

function longrope(source: RopeSource, raw: RawRope): RopeScaling {
  const originalMaxPositions = originalPositions(source, raw);
  const known = originalMaxPositions ?? source.maxPositions;
  const factor = originalMaxPositions === undefined ? (raw.factor ?? 1) : source.maxPositions / originalMaxPositions;
  return {
    kind: 'longrope',
    shortDivisors: divisorsOf(source, raw, 'short_factor'),
    longDivisors: divisorsOf(source, raw, 'long_factor'),
    originalMaxPositions: known,
    magnitude: raw.attention_factor ?? (factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(known))),
  };
}

function divisorsOf(source: RopeSource, raw: RawRope, name: 'short_factor' | 'long_factor'): readonly number[] {
  const values = raw[name] ?? fail(source, name, 'the value is missing: longrope rope scaling needs it');
  const expected = source.rotaryDim / 2;
  return values.length === expected
    ? values
    : fail(source, name, `${values.length} factors for ${expected} frequencies`);
}

function originalPositions(source: RopeSource, raw: RawRope): number | undefined {
  return raw.original_max_position_embeddings ?? source.originalMaxPositions;
}

function need(source: RopeSource, raw: RawRope, kind: string, name: keyof RawRope): number {
  const value = raw[name];
  if (typeof value === 'number') return value;
  return fail(source, name, `the value is missing: ${kind} rope scaling needs it`);
}

function fail({ file, key }: RopeSource, name: string | undefined, reason: string): never {
  throw new ModelFileError({ file, key: name === undefined ? key : `${key}.${name}`, reason });
}
