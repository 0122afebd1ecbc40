// RoPE settings of a GGUF file: bases, scaling from keys, and divisors from tensors.
import type { Positions, Rope, RopeScaling } from '../../util/model-config.ts';
import { ModelFileError } from '../errors.ts';
import { dequantise } from '../quants/dequantise.ts';
import { expectTensor, type ModelFiles, type TensorInfo } from '../types.ts';
import type { ArchitectureKeys } from './gguf-keys.ts';

/**
 * @param slidingTheta RoPE base of the sliding-window layers, if they have their own
 * @throws ModelFileError that names the invalid key or tensor
 */
export function ggufRope(
  keys: ArchitectureKeys,
  files: ModelFiles,
  headDim: number,
  slidingTheta: number | undefined,
): Positions {
  const rotaryDim = keys.optionalSize('rope.dimension_count') ?? headDim;
  if (rotaryDim > headDim || rotaryDim % 2 !== 0)
    keys.fail('rope.dimension_count', `${rotaryDim} rotated dimensions in heads of ${headDim}`);
  const theta = keys.positive('rope.freq_base') ?? 10_000;
  const swaTheta = keys.positive('rope.freq_base_swa') ?? slidingTheta;
  const slidingRope: Rope | undefined =
    swaTheta === undefined ? undefined : { theta: swaTheta, scaling: { kind: 'none' } };
  return { kind: 'rope', rotaryDim, rope: { theta, scaling: scalingOf(keys, files, rotaryDim) }, slidingRope };
}

function scalingOf(keys: ArchitectureKeys, files: ModelFiles, rotaryDim: number): RopeScaling {
  const type = keys.string('rope.scaling.type');
  const divisors = (name: string): readonly number[] => readDivisors(files, expectTensor(files, name, [rotaryDim / 2]));
  const has = (name: string): boolean => files.tensor(name) !== undefined;
  if (type === 'longrope' || has('rope_factors_short.weight')) {
    return {
      kind: 'longrope',
      shortDivisors: divisors('rope_factors_short.weight'),
      longDivisors: divisors('rope_factors_long.weight'),
      originalMaxPositions: keys.size('rope.scaling.original_context_length'),
      magnitude: keys.positive('rope.scaling.attn_factor') ?? 1,
    };
  }
  const byKeys = scalingByKeys(keys, type);
  if (!has('rope_freqs.weight')) return byKeys;
  if (byKeys.kind !== 'none')
    keys.fail('rope.scaling.type', `${byKeys.kind} scaling with the tensor rope_freqs.weight is not supported`);
  return { kind: 'divisors', divisors: divisors('rope_freqs.weight') };
}

function scalingByKeys(keys: ArchitectureKeys, type: string | undefined): RopeScaling {
  const factor = keys.positive('rope.scaling.factor') ?? keys.positive('rope.scale_linear') ?? 1;
  switch (type) {
    case 'none':
      return { kind: 'none' };
    case undefined:
    case 'linear':
      return factor === 1 ? { kind: 'none' } : { kind: 'linear', factor };
    case 'yarn':
      return {
        kind: 'yarn',
        factor,
        betaFast: keys.positive('rope.scaling.yarn_beta_fast') ?? 32,
        betaSlow: keys.positive('rope.scaling.yarn_beta_slow') ?? 1,
        truncate: true,
        originalMaxPositions: keys.optionalSize('rope.scaling.original_context_length') ?? keys.size('context_length'),
        magnitude: (keys.positive('rope.scaling.attn_factor') ?? 1) * (1 + 0.1 * Math.log(factor)),
      };
    default:
      return keys.fail(
        'rope.scaling.type',
        `rope scaling "${type}" is not supported: known are none, linear, yarn, longrope`,
      );
  }
}

function readDivisors(files: ModelFiles, info: TensorInfo): number[] {
  const divisors = Array.from(dequantise(info.type, files.read(info, 0, info.byteLength)));
  if (divisors.every((divisor) => divisor > 0 && Number.isFinite(divisor))) return divisors;
  throw new ModelFileError({
    file: info.file,
    tensor: info.name,
    offset: info.offset,
    reason: 'a rope divisor is not a finite number above 0',
  });
}
