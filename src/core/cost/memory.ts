// Memory that a model's weights take on an instance, and the memory left for KV.
import type { InstanceShape, ModelShape } from './shapes.ts';

type Config = Omit<InstanceShape, 'efficiency' | 'device' | 'machine'> & {
  readonly device: { readonly memoryBytes: number };
};

/**
 * KV memory is a share of the devices' memory, less weights and the activations of the largest step, as vLLM sizes it.
 * @throws RangeError if the heads cannot be split over the devices, or nothing is left for KV
 */
export function kvCapacity({ model, device, tensorParallel, pipelineParallel, ...config }: Config) {
  const { weightBytes, kvBytes, memoryShare, stepRows } = config;
  const held = heldModel(model, tensorParallel);
  const devices = tensorParallel * pipelineParallel;
  const weights = parameters(held) * weightBytes;
  const activations = stepRows * stepRowBytes(held, tensorParallel) * pipelineParallel;
  const memory = device.memoryBytes * memoryShare * devices;
  if (weights + activations >= memory) {
    throw new RangeError(
      `Cannot hold the model: weights take ${gigabytes(weights)} GB and a step of ${stepRows} tokens ${gigabytes(activations)} GB: the share ${memoryShare} of ${devices} devices of ${gigabytes(device.memoryBytes)} GB is ${gigabytes(memory)} GB`,
    );
  }
  const kvCapacityTokens = Math.floor((memory - weights - activations) / kvBytesPerTokenOf(held, kvBytes));
  return {
    kvBytesPerToken: kvBytesPerTokenOf(model, kvBytes),
    kvCapacityTokens,
    activationBytesPerToken: activationBytesPerToken(model),
  };
}

export function kvBytesPerTokenOf({ layers, kvHeads, headDim }: ModelShape, kvBytes: number): number {
  return 2 * layers * kvHeads * headDim * kvBytes;
}

/**
 * The model with the KV heads that the devices hold together: beyond one KV head per device, heads are replicated.
 * @throws RangeError if query heads or KV heads cannot be split evenly
 */
export function heldModel(model: ModelShape, tensorParallel: number): ModelShape {
  const { heads, kvHeads } = model;
  if (heads % tensorParallel !== 0)
    throw new RangeError(`Cannot split ${heads} attention heads over ${tensorParallel} tensor-parallel devices`);
  if (kvHeads % tensorParallel !== 0 && tensorParallel % kvHeads !== 0)
    throw new RangeError(
      `Cannot split or replicate ${kvHeads} KV heads over ${tensorParallel} tensor-parallel devices`,
    );
  return { ...model, kvHeads: Math.max(kvHeads, tensorParallel) };
}

/**
 * Activations of one row in 16 bits, on all devices that share a layer: the residual stream, the input of a layer and
 * the output of its all-reduce on each device, and the inner rows of attention and MLP once.
 */
function stepRowBytes({ hidden, heads, kvHeads, headDim, intermediate, gated }: ModelShape, tensorParallel: number) {
  const inner = (2 * heads + 2 * kvHeads) * headDim + (gated ? 3 : 2) * intermediate;
  return 2 * (3 * hidden * tensorParallel + inner);
}

/** Activations between two layers, in 16 bits. */
export function activationBytesPerToken({ hidden }: ModelShape): number {
  return 2 * hidden;
}

/** Weights of all matrices. */
export function parameters(model: ModelShape): number {
  const embeddings = model.vocabulary * model.hidden * (model.tiedHead ? 1 : 2);
  return model.layers * layerParameters(model) + embeddings;
}

/** Weights of the matrices of one layer. */
export function layerParameters({ hidden, heads, kvHeads, headDim, intermediate, gated }: ModelShape): number {
  return hidden * headDim * (2 * heads + 2 * kvHeads) + hidden * intermediate * (gated ? 3 : 2);
}

function gigabytes(bytes: number): string {
  return (bytes / 1e9).toFixed(1);
}
