// The step cost of a very small instance.
import { RooflineCost } from '../../../src/core/cost/roofline.ts';

export const blockTokens = 16;
export const cost = new RooflineCost({
  model: {
    layers: 2,
    hidden: 64,
    heads: 2,
    kvHeads: 2,
    headDim: 32,
    intermediate: 128,
    gated: true,
    vocabulary: 100,
    tiedHead: true,
  },
  device: {
    memoryBytes: 4e6,
    memoryBytesPerSecond: 1e9,
    operationsPerSecond: 1e10,
    linkBytesPerSecond: 1e9,
    linkUs: 1,
  },
  efficiency: { compute: 1, memory: 1, link: 1, stepUs: 100, layerUs: 10 },
  tensorParallel: 1,
  pipelineParallel: 1,
  weightBytes: 2,
  kvBytes: 2,
  memoryShare: 1,
  stepRows: 0,
});
