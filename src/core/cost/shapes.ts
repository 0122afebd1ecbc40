// Inputs of cost models: the shapes of models, devices, machines and instances.

/** A decoder-only transformer. Sizes are elements. */
export interface ModelShape {
  readonly layers: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Width of the MLP, which has three matrices if gated, else two. */
  readonly intermediate: number;
  readonly gated: boolean;
  readonly vocabulary: number;
  readonly tiedHead: boolean;
  /** Undefined: every layer has one MLP. */
  readonly experts?: ExpertShape | undefined;
  /** Undefined: a token has keys and values of `kvHeads` heads. */
  readonly latent?: LatentShape | undefined;
}

/** Mixture of experts: MLPs of which a router selects some for each row. */
export interface ExpertShape {
  /** Routed experts of a layer, and those that a row takes. */
  readonly count: number;
  readonly active: number;
  /** Experts that all rows take. */
  readonly shared: number;
  /** Width of an expert. */
  readonly intermediate: number;
  /** First layers that have one MLP of the model's `intermediate` width instead. */
  readonly denseLayers: number;
}

/**
 * Multi-head latent attention (DeepSeek-V2): the cache has one latent vector of a token, from which each head computes
 * its keys and values, and one rotated key for all heads.
 */
export interface LatentShape {
  readonly rank: number;
  readonly rotatedDim: number;
  /** Rank of the queries; undefined: they are computed at once. */
  readonly queryRank?: number | undefined;
  /** Tensor-parallel devices that each hold the latent vectors; undefined: 1. */
  readonly replicas?: number | undefined;
}

/** One device and its links. Bytes and operations per second are peaks. */
export interface DeviceShape {
  readonly memoryBytes: number;
  readonly memoryBytesPerSecond: number;
  /** At the precision in use. */
  readonly operationsPerSecond: number;
  /** To the other devices of the instance, in one direction. */
  readonly linkBytesPerSecond: number;
  readonly linkUs: number;
}

/**
 * For an instance across machines: devices of each machine, and the bandwidth of its NICs together in one direction.
 */
export interface MachineShape {
  readonly devices: number;
  readonly nicBytesPerSecond: number;
  readonly nicUs: number;
}

/** Share of the peaks that real kernels reach, and fixed overheads. */
export interface Efficiency {
  readonly compute: number;
  readonly memory: number;
  readonly link: number;
  /** Overhead of a step, and of each of its layers. */
  readonly stepUs: number;
  readonly layerUs: number;
  /** Attention: `compute` of prefill rows, and `memory` of decode rows. Undefined: as in linear layers. */
  readonly attentionCompute?: number | undefined;
  readonly attentionMemory?: number | undefined;
  /**
   * Weights of a matrix on one device at which a product reaches half of `compute`, or of `memory`: smaller shards reach
   * less. Undefined: 0.
   */
  readonly computeShard?: number | undefined;
  readonly memoryShard?: number | undefined;
  /** Overhead of a row with logits: sampling, bookkeeping of its sequence. Undefined: 0. */
  readonly sequenceUs?: number | undefined;
  /** Time of an all-reduce beside `linkUs` and its bytes. Undefined: 0. */
  readonly reduceUs?: number | undefined;
}

export interface InstanceShape {
  readonly model: ModelShape;
  readonly device: DeviceShape;
  /** Undefined: all devices are in one machine. */
  readonly machine?: MachineShape | undefined;
  readonly efficiency: Efficiency;
  /** Devices that share every layer, and groups of devices that share out the layers. */
  readonly tensorParallel: number;
  readonly pipelineParallel: number;
  readonly weightBytes: number;
  readonly kvBytes: number;
  /** Rows of the busiest device's experts over those of the mean device; undefined: 1. */
  readonly expertImbalance?: number | undefined;
  /** Share of the memory for weights, activations and KV. */
  readonly memoryShare: number;
  /** Rows of the largest step, whose activations take memory. */
  readonly stepRows: number;
}
