// The bench of borrowed memory over real instances: a request longer than any pool, and one that outgrows its instance.
import { expect, it } from 'vitest';
import { benchMove, benchSpeed } from '../../src/bench/borrow.ts';
import { loadNative } from '../../src/kernel/native/native.ts';
import type { LiveCluster } from '../../src/runtime/threads/live-cluster.ts';
import { borrowingCluster, liveCluster } from '../runtime/threads/instances.ts';

const quiet = { vocabSize: 500, onProgress: () => {} };
const native = loadNative();

async function withClusters(clusters: readonly LiveCluster[], use: () => Promise<void>): Promise<void> {
  try {
    await Promise.all(clusters.map((cluster) => cluster.ready()));
    await use();
  } finally {
    await Promise.all(clusters.map((cluster) => cluster.close()));
  }
}

it.skipIf(native === undefined)('queries other instances for every token beyond the local capacity', async () => {
  const borrowing = borrowingCluster([40, 40, 40]);
  const alone = liveCluster([{ contextTokens: 8192 }]);
  await withClusters([borrowing, alone], async () => {
    const row = await benchSpeed({ ...quiet, borrowing, alone, context: 2048, generate: 6, repeats: 1 });
    // A query of 4 heads of 64 in bf16 in each of 6 layers, at least, and an answer in f32.
    expect(row.remoteBytesPerToken).toBeGreaterThan(6 * 4 * 64 * (2 + 4));
    expect(row.speed).toBeGreaterThan(0);
    expect(row.waitMsPerToken).toBeGreaterThanOrEqual(0);
  });
});

it.skipIf(native === undefined)('compares an overflow with a larger instance that is started for it', async () => {
  const borrowing = borrowingCluster([40, 40, 40]);
  const small = liveCluster([{ contextTokens: 8192, kvBytes: 40 * 32 * 3072 }]);
  const openBigger = async () => {
    const port = liveCluster([{ contextTokens: 8192 }]);
    await port.ready();
    return { port, close: () => port.close() };
  };
  await withClusters([borrowing, small], async () => {
    const rows = await benchMove({ ...quiet, borrowing, small, openBigger, pool: 1280, shares: [1 / 20] });
    expect(rows).toHaveLength(1);
    expect(rows[0]?.movedMs).toBeGreaterThan(rows[0]?.loadMs ?? 0);
    expect(rows[0]?.lostRatio).toBeGreaterThan(0);
  });
});
