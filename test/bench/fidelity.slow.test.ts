// One load served live and simulated: figures independent of machine speed agree, and every step is recorded.
import { expect, it } from 'vitest';
import { benchFidelity } from '../../src/bench/fidelity/fidelity.ts';
import { loadNative } from '../../src/kernel/native/native.ts';
import { createStepRecord } from '../../src/runtime/threads/step-record.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { liveCluster } from '../runtime/threads/instances.ts';

/** Two families of prompts of 128 tokens, 96 of them shared; one after another. */
const requests: readonly TraceRequest[] = Array.from({ length: 24 }, (_, index) => ({
  ...{ index, arrivalUs: index * 20_000, inputTokens: 128, outputTokens: 6 },
  blocks: Int32Array.of(10 + (index % 2), 20 + (index % 2), 30 + (index % 2), 100 + index),
}));

it.skipIf(loadNative() === undefined)('serves one load live and simulated', async () => {
  const records = [createStepRecord(100_000), createStepRecord(100_000)];
  const cluster = liveCluster(records.map((record) => ({ record })));
  try {
    const described = await cluster.ready();
    const report = await benchFidelity({
      ...{
        cluster,
        records,
        requests,
        vocabSize: 500,
        contextTokens: 300,
        rehearsals: [requests.slice(0, 4), requests.slice(4, 8)],
        calibrationMs: 0,
        onProgress: () => {},
      },
      ...{ capacityTokens: described.map(({ capacityTokens }) => capacityTokens), kvBytesPerToken: 1024 },
      ...{ layers: 2, aheadOfUse: true },
    });
    expect(report.requests).toBe(requests.length);
    expect(report.calibration.steps).toBeGreaterThan(200);
    // All requests but the first of each family per instance find its three blocks.
    for (const { hitRatioTokens, ttftMs, tbtMs } of [report.live, report.simulated, report.replayed]) {
      expect(hitRatioTokens).toBeGreaterThanOrEqual((20 * 96) / (24 * 128));
      expect(hitRatioTokens).toBeLessThanOrEqual((22 * 96) / (24 * 128));
      expect(Math.min(ttftMs, tbtMs)).toBeGreaterThan(0);
    }
    // Concurrent requests share steps.
    expect(report.steps).toBeGreaterThan(6);
    expect(report.matchedSteps).toBeLessThanOrEqual(report.steps);
    expect(report.matchedSteps).toBeGreaterThan(0);
  } finally {
    await cluster.close();
  }
});
