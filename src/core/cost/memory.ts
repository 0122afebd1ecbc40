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

export function kvBytesPerTokenOf({ layers, kvHeads, headDim, latent }: ModelShape, kvBytes: number): number {
  if (latent !== undefined) return layers * (latent.rank + latent.rotatedDim) * (latent.replicas ?? 1) * kvBytes;
  return 2 * layers * kvHeads * headDim * kvBytes;
}

/**
 * The model with the KV heads that the devices hold together: beyond one KV head per device, heads are replicated, and
 * so are latent vectors on every device.
 * @throws RangeError if query heads or KV heads cannot be split evenly
 */
export function heldModel(model: ModelShape, tensorParallel: number): ModelShape {
  const { heads, kvHeads, latent } = model;
  if (heads % tensorParallel !== 0)
    throw new RangeError(`Cannot split ${heads} attention heads over ${tensorParallel} tensor-parallel devices`);
  if (latent !== undefined) return { ...model, latent: { ...latent, replicas: tensorParallel } };
  if (kvHeads % tensorParallel !== 0 && tensorParallel % kvHeads !== 0)
    throw new RangeError(
      `Cannot split or replicate ${kvHeads} KV heads over ${tensorParallel} tensor-parallel devices`,
    );
  return { ...model, kvHeads: Math.max(kvHeads, tensorParallel) };
}

/** @param what computes attention with keys and values of heads only @throws RangeError for latent attention */
export function refuseLatent({ latent }: ModelShape, what: string): void {
  if (latent !== undefined) throw new RangeError(`Cannot compute latent attention with ${what}`);
}

/**
 * Activations of one row in 16 bits, on all devices that share a layer: the residual stream, the input of a layer and
 * the output of its all-reduce on each device, and the inner rows of attention and MLP once.
 */
function stepRowBytes(model: ModelShape, tensorParallel: number) {
  const { hidden, heads, kvHeads, headDim, intermediate, gated, experts } = model;
  const expertsWidth = experts === undefined ? 0 : (experts.active + experts.shared) * experts.intermediate;
  const inner = (2 * heads + 2 * kvHeads) * headDim + (gated ? 3 : 2) * Math.max(intermediate, expertsWidth);
  return 2 * (3 * hidden * tensorParallel + inner);
}

/** Activations between two layers, in 16 bits. */
export function activationBytesPerToken({ hidden }: ModelShape): number {
  return 2 * hidden;
}

/** Weights of all matrices. */
export function parameters(model: ModelShape): number {
  const { everyRow, experts } = layerParameters(model);
  return everyRow + experts + (model.tiedHead ? 1 : 2) * headParameters(model);
}

/** Weights that the computation of one row with logits multiplies by: those of its experts only, and no embedding. */
export function activeParameters(model: ModelShape): number {
  const { everyRow, experts } = layerParameters(model);
  const share = model.experts === undefined ? 0 : model.experts.active / model.experts.count;
  return everyRow + experts * share + headParameters(model);
}

export function headParameters({ vocabulary, hidden }: ModelShape): number {
  return vocabulary * hidden;
}

export interface LayerParameters {
  /** Weights that all rows multiply by. */
  readonly everyRow: number;
  /** Weights of the experts that a router selects from. */
  readonly experts: number;
}

/** Weights of the matrices of all layers. */
export function layerParameters(model: ModelShape): LayerParameters {
  const { layers, hidden, intermediate, gated, experts } = model;
  const matrices = gated ? 3 : 2;
  const attention = layers * attentionParameters(model);
  if (experts === undefined) return { everyRow: attention + layers * hidden * intermediate * matrices, experts: 0 };
  const { count, shared, denseLayers } = experts;
  const expert = hidden * experts.intermediate * matrices;
  const routed = layers - denseLayers;
  const router = hidden * count;
  return {
    everyRow: attention + denseLayers * hidden * intermediate * matrices + routed * (shared * expert + router),
    experts: routed * count * expert,
  };
}

function attentionParameters({ hidden, heads, kvHeads, headDim, latent }: ModelShape): number {
  if (latent === undefined) return hidden * headDim * (2 * heads + 2 * kvHeads);
  const { rank, rotatedDim, queryRank, replicas = 1 } = latent;
  const queries = heads * (headDim + rotatedDim);
  const down = hidden * (rank + rotatedDim + (queryRank ?? 0)) * replicas;
  const up = (queryRank ?? hidden) * queries + rank * heads * 2 * headDim;
  return down + up + heads * headDim * hidden;
}

function gigabytes(bytes: number): string {
  return (bytes / 1e9).toFixed(1);
}
