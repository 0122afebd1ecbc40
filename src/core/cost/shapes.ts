// What cost models are made from: the shapes of models, devices, machines and instances.

/** A dense decoder-only transformer. Sizes are elements. */
export interface ModelShape {
  readonly layers: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Width of the MLP; three matrices when it is gated, two when not. */
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
  /** To the other devices of the instance, one direction. */
  readonly linkBytesPerSecond: number;
  readonly linkUs: number;
}

/** Where an instance spans several machines: how many devices each has, and what its NICs carry together in one direction. */
export interface MachineShape {
  readonly devices: number;
  readonly nicBytesPerSecond: number;
  readonly nicUs: number;
}

/** What real kernels reach of the peaks, and what they cost before they begin. */
export interface Efficiency {
  readonly compute: number;
  readonly memory: number;
  readonly link: number;
  /** Of a step, and of each layer in it. */
  readonly stepUs: number;
  readonly layerUs: number;
}
export interface InstanceShape {
  readonly model: ModelShape;
  readonly device: DeviceShape;
  /** Undefined: all devices are of one machine. */
  readonly machine?: MachineShape | undefined;
  readonly efficiency: Efficiency;
  /** Devices that share every layer, and groups of them that share out the layers. */
  readonly tensorParallel: number;
  readonly pipelineParallel: number;
  readonly weightBytes: number;
  readonly kvBytes: number;
  /** Of the memory left after weights, the share that holds KV. */
  readonly kvMemoryShare: number;
}
