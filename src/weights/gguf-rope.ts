// Rope settings of a GGUF file: bases, scaling by keys, and divisors in tensors.
import type { Positions, Rope, RopeScaling } from '../util/model-config.ts';
import { dequantise } from './dequantise.ts';
import { ModelFileError } from './errors.ts';
import type { ArchitectureKeys } from './gguf-keys.ts';
import { expectTensor, type ModelFiles, type TensorInfo } from './types.ts';

export interface GgufRope {
  readonly positions: Extract<Positions, { readonly kind: 'rope' }>;
  /** Factor of q and k alike, by which scaling keeps scores from flattening. */
  readonly magnitude: number;
  /** Positions that the divisors are meant for; undefined: all. */
  readonly positionsMax: number | undefined;
}

/**
 * @param slidingTheta base of the sliding layers where they have one of their own
 * @throws ModelFileError naming the key or tensor that is wrong
 */
export function ggufRope(
  keys: ArchitectureKeys,
  files: ModelFiles,
  headDim: number,
  slidingTheta: number | undefined,
): GgufRope {
  const rotaryDim = keys.optionalSize('rope.dimension_count') ?? headDim;
  if (rotaryDim > headDim || rotaryDim % 2 !== 0)
    keys.fail('rope.dimension_count', `${rotaryDim} rotated dimensions in heads of ${headDim}`);
  const theta = keys.positive('rope.freq_base') ?? 10_000;
  const swaTheta = keys.positive('rope.freq_base_swa') ?? slidingTheta;
  const slidingRope: Rope | undefined =
    swaTheta === undefined ? undefined : { theta: swaTheta, scaling: { kind: 'none' } };
  const { scaling, magnitude = 1, positionsMax } = scalingOf(keys, files, rotaryDim);
  // A magnitude on part of a head is no factor of the scores.
  if (magnitude !== 1 && rotaryDim !== headDim)
    keys.fail('rope.scaling.attn_factor', `${magnitude} with ${rotaryDim} of ${headDim} dimensions is not supported`);
  return { positions: { kind: 'rope', rotaryDim, rope: { theta, scaling }, slidingRope }, magnitude, positionsMax };
}

interface Scaling {
  readonly scaling: RopeScaling;
  readonly magnitude?: number;
  readonly positionsMax?: number;
}

function scalingOf(keys: ArchitectureKeys, files: ModelFiles, rotaryDim: number): Scaling {
  const type = keys.string('rope.scaling.type');
  const divisors = (name: string): readonly number[] | undefined =>
    files.tensor(name) === undefined ? undefined : readDivisors(files, expectTensor(files, name, [rotaryDim / 2]));
  // Longer sequences would want the long divisors, and other rotations of what is in the cache already.
  const short = divisors('rope_factors_short.weight');
  if (short !== undefined) {
    return {
      scaling: { kind: 'divisors', divisors: short },
      magnitude: keys.positive('rope.scaling.attn_factor') ?? 1,
      positionsMax: keys.size('rope.scaling.original_context_length'),
    };
  }
  if (type === 'longrope') keys.fail('rope.scaling.type', 'longrope without the tensor rope_factors_short.weight');
  const listed = divisors('rope_freqs.weight');
  const byKeys = scalingByKeys(keys, type);
  if (listed === undefined) return { scaling: byKeys };
  if (byKeys.kind !== 'none')
    keys.fail('rope.scaling.type', `${byKeys.kind} scaling beside the tensor rope_freqs.weight is not supported`);
  return { scaling: { kind: 'divisors', divisors: listed } };
}

function scalingByKeys(keys: ArchitectureKeys, type: string | undefined): RopeScaling {
  if (type !== undefined && type !== 'none' && type !== 'linear')
    keys.fail('rope.scaling.type', `rope scaling "${type}" is not supported: known are none, linear, longrope`);
  const factor = keys.positive('rope.scaling.factor') ?? keys.positive('rope.scale_linear') ?? 1;
  return type === 'none' || factor === 1 ? { kind: 'none' } : { kind: 'linear', factor };
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
