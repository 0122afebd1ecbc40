// Inputs of cost models: the shapes of models, devices, machines and instances.

/** A dense decoder-only transformer. Sizes are elements. */
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
  /** Share of the memory for weights, activations and KV. */
  readonly memoryShare: number;
  /** Rows of the largest step, whose activations take memory. */
  readonly stepRows: number;
}
