// Memory that a model's weights take on an instance, and the memory left for KV.
import type { InstanceShape, ModelShape } from './shapes.ts';

type Share = Omit<InstanceShape, 'efficiency' | 'device' | 'machine'> & {
  readonly device: { readonly memoryBytes: number };
};

/** @throws RangeError when the devices cannot hold the weights */
export function kvCapacity({ model, device, tensorParallel, pipelineParallel, ...config }: Share) {
  const { weightBytes, kvBytes, kvMemoryShare } = config;
  const weights = parameters(model) * weightBytes;
  const devices = tensorParallel * pipelineParallel;
  const memory = device.memoryBytes * devices;
  if (weights >= memory) {
    throw new RangeError(
      `Cannot hold the model: its weights are larger than the memory: ${gigabytes(weights)} GB on ${devices} devices of ${gigabytes(device.memoryBytes)} GB`,
    );
  }
  const kvBytesPerToken = 2 * model.layers * model.kvHeads * model.headDim * kvBytes;
  const kvCapacityTokens = Math.floor(((memory - weights) * kvMemoryShare) / kvBytesPerToken);
  return { kvBytesPerToken, kvCapacityTokens, activationBytesPerToken: activationBytesPerToken(model) };
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
