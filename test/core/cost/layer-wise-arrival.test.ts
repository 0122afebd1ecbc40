// The end of a step that waits for keys and values layer by layer.
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { type LayeredStep, layerWiseEndUs } from '../../../src/core/cost/layer-wise-arrival.ts';

/** Layer by layer: each starts after the one before it, once its keys and values have arrived. */
function byLayers({ startedUs, computeUs, layers }: LayeredStep, beganUs: number, endedUs: number): number {
  let us = startedUs;
  for (let layer = 0; layer < layers; layer++) {
    const arrivedUs = beganUs + ((layer + 1) * (endedUs - beganUs)) / layers;
    us = Math.max(us, arrivedUs) + computeUs / layers;
  }
  return us;
}

it('equals the result of a loop over the layers', () => {
  const us = fc.integer({ min: 0, max: 100_000 });
  fc.assert(
    fc.property(us, us, fc.integer({ min: 1, max: 64 }), us, us, (startedUs, computeUs, layers, beganUs, forUs) => {
      const step = { startedUs, computeUs, layers };
      const exact = byLayers(step, beganUs, beganUs + forUs);
      const endUs = layerWiseEndUs(step, { beganUs, endedUs: beganUs + forUs });
      expect(endUs).toBeGreaterThanOrEqual(exact - 1e-6);
      expect(endUs).toBeLessThan(exact + 1 + 1e-6);
    }),
  );
});

it('hides a transfer that is in time, and adds a late one less the computation meanwhile', () => {
  const step = { startedUs: 1000, computeUs: 400, layers: 4 };
  expect(layerWiseEndUs(step, { beganUs: 500, endedUs: 1100 })).toBe(1400);
  expect(layerWiseEndUs(step, { beganUs: 1000, endedUs: 2000 })).toBe(2100);
  expect(layerWiseEndUs(step, { beganUs: 1200, endedUs: 1240 })).toBe(1610);
});
