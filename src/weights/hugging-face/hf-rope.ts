// RoPE settings of a config.json, in both styles: rope_theta with rope_scaling, and rope_parameters.
import { z } from 'zod';
import type { Positions, Rope } from '../../util/model-config.ts';
import { ModelFileError } from '../errors.ts';
import { type RawRope, type RopeSource, ropeSchema, scalingOf } from './hf-rope-scaling.ts';
import type { RawConfig } from './hf-schema.ts';
import { validate } from './json-file.ts';

const positive = z.number().positive();

const byLayerTypeSchema = z.object({ full_attention: ropeSchema, sliding_attention: ropeSchema.nullish() });

const thetaDefault = 10_000;

/** RoPE of full and sliding-window layers, and the rotated dimensions of a head. */
export function ropesOf(file: string, raw: RawConfig, headDim: number, maxPositions: number): Positions {
  const theta =
    optionalNumber(file, 'rope_theta', raw.rope_theta) ??
    optionalNumber(file, 'rotary_emb_base', raw.rotary_emb_base) ??
    thetaDefault;
  const { main, mainKey, sliding } = settingsOf(file, raw);
  const share = main.partial_rotary_factor ?? raw.partial_rotary_factor ?? raw.rotary_pct ?? 1;
  const rotaryDim = Math.floor(headDim * share);
  if (rotaryDim < 2 || rotaryDim % 2 !== 0) {
    const reason = `${rotaryDim} of ${headDim} dimensions would be rotated: an even number is needed`;
    throw new ModelFileError({ file, key: 'head_dim', reason });
  }
  const original = 'original_max_position_embeddings';
  const originalMaxPositions = optionalNumber(file, original, raw[original]);
  const source: RopeSource = { file, key: mainKey, rotaryDim, maxPositions, originalMaxPositions };
  const localTheta = optionalNumber(file, 'rope_local_base_freq', raw.rope_local_base_freq);
  const slidingRope = sliding === undefined ? undefined : ropeOf(source, sliding, localTheta ?? theta);
  return {
    kind: 'rope',
    rotaryDim,
    rope: ropeOf(source, main, theta),
    slidingRope:
      slidingRope ?? (localTheta === undefined ? undefined : { theta: localTheta, scaling: { kind: 'none' } }),
  };
}

function settingsOf(
  file: string,
  raw: RawConfig,
): { readonly main: RawRope; readonly mainKey: string; readonly sliding: RawRope | undefined } {
  const isObject = (value: unknown): value is object => typeof value === 'object' && value !== null;
  // As in transformers, rope_scaling takes precedence over rope_parameters, and its base is that of the file.
  const scales = isObject(raw.rope_scaling) && Object.keys(raw.rope_scaling).length > 0;
  if (isObject(raw.rope_parameters)) {
    const mainKey = 'rope_parameters';
    if ('full_attention' in raw.rope_parameters) {
      const ropes = validate(file, byLayerTypeSchema, raw.rope_parameters, mainKey);
      const scaling = scales ? validate(file, ropeSchema, raw.rope_scaling, 'rope_scaling') : {};
      const main = { ...ropes.full_attention, ...scaling };
      return { main, mainKey, sliding: ropes.sliding_attention ?? undefined };
    }
    if (!scales) return { main: validate(file, ropeSchema, raw.rope_parameters, mainKey), mainKey, sliding: undefined };
  }
  const mainKey = 'rope_scaling';
  const scaling = raw.rope_scaling ?? {};
  return { main: validate(file, ropeSchema, scaling, mainKey), mainKey, sliding: undefined };
}

function ropeOf(source: RopeSource, raw: RawRope, theta: number): Rope {
  return { theta: raw.rope_theta ?? theta, scaling: scalingOf(source, raw) };
}

function optionalNumber(file: string, key: string, value: unknown): number | undefined {
  return validate(file, positive.nullish(), value, key) ?? undefined;
}
