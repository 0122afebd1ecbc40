// The bandwidth above which loading a cached prefix pays: Mooncake's formula with its own figures, and the roofline.
import { describe, expect, it } from 'vitest';
import { createCostModel } from '../../../src/cli/options/cost-model.ts';
import { hardwareSpec, modelSpec } from '../../../src/cli/options/specs.ts';
import { ModelPredictor } from '../../../src/core/cost/model-predictor.ts';
import { ChunkedPrefill } from '../../../src/core/cost/prefill.ts';
import { assumedEfficiency } from '../../../src/core/cost/roofline.ts';

const prefixTokens = 8192;

/** B / G > 2 d s / (gqa (a p d + b d^2)), with d = 8192, s = 2 bytes, gqa = 8, a = 4, b = 22. */
function publishedBytesPerSecond(operationsPerSecond: number): number {
  const d = 8192;
  return (operationsPerSecond * 2 * d * 2) / (8 * (4 * prefixTokens * d + 22 * d ** 2));
}

/** H800 and H100 have the same arithmetic. */
const cases = [
  ['a800x8', 6],
  ['h100x8', 19],
] as const;

describe.each(cases)('the break-even bandwidth of reuse on %s', (hardware, publishedGb) => {
  const { devices, operationsPerSecond, hostLinkBytesPerSecond = 0 } = hardwareSpec(hardware);

  it('equals the published figure by the published formula', () => {
    expect(Math.round(publishedBytesPerSecond(devices * operationsPerSecond.bf16) / 1e9)).toBe(publishedGb);
  });

  it('is lower by the roofline, which includes kernel efficiency and terms that the formula omits', () => {
    const cost = createCostModel({
      cost: 'roofline',
      model: 'llama2-70b',
      hardware,
      pp: 1,
      precision: 'bf16',
      kvType: 'bf16',
    });
    const prefillUs = new ChunkedPrefill(new ModelPredictor(cost), prefixTokens).prefillUs(prefixTokens, 0);
    const bytesPerSecond = (prefixTokens * cost.kvBytesPerToken * 1e6) / prefillUs;
    const published = publishedBytesPerSecond(devices * operationsPerSecond.bf16);
    expect(bytesPerSecond / published).toBeLessThan(assumedEfficiency.compute);
    expect(bytesPerSecond / published).toBeGreaterThan(assumedEfficiency.compute / 2);
    // The machines have far more than both figures.
    expect(devices * hostLinkBytesPerSecond * assumedEfficiency.link).toBeGreaterThan(15 * published);
    expect(modelSpec('llama2-70b').layers * 2 * 8 * 128 * 2).toBe(cost.kvBytesPerToken);
  });
});
