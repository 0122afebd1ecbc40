// The bench of early starts over real instances: both ways transfer every page once.
import { expect, it } from 'vitest';
import { benchEarlyStart } from '../../src/bench/early-start.ts';
import { loadNative } from '../../src/kernel/native/native.ts';
import { dyingWorker } from '../bundled-worker.ts';
import { liveSettings } from '../runtime/threads/instances.ts';

it.skipIf(loadNative() === undefined)(
  'times requests behind a prefix that is computed, local, in transfer, or awaited',
  async () => {
    const report = await benchEarlyStart({
      entry: dyingWorker,
      settings: [liveSettings, liveSettings, { ...liveSettings, waitsForPrefixes: true }],
      ...{ vocabSize: 500, blockTokens: 32, prefix: 96, rest: 20, repeats: 1, log: () => {} },
    });
    const { computedMs, hereMs, aheadMs, awaitedMs, bytes } = report;
    expect(Math.min(computedMs, hereMs, aheadMs, awaitedMs)).toBeGreaterThan(0);
    // 3 blocks of 6 layers, bf16: keys and values of 2 heads of 64.
    expect(bytes).toBe(3 * 6 * 32 * 2 * 2 * 64 * 2);
  },
);
