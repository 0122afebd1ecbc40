// The bench of tiers over a real instance: the blocks of each row come from its tier.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { benchTiers } from '../../src/bench/tiers.ts';
import { loadNative } from '../../src/kernel/native/native.ts';
import { liveCluster } from '../runtime/threads/instances.ts';

it.skipIf(loadNative() === undefined)('times prompts by the tier of their blocks', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-bench-tiers-'));
  // Of kvasir-tiny; 4 blocks of a prompt are full, a fifth one is not.
  const blockBytes = 6 * 2 ** 14;
  const tiers = { hostBytes: 12 * blockBytes, ssd: { path: join(folder, 'instance-0'), bytes: 60 * blockBytes } };
  const settings = { contextTokens: 150, kvBytes: 7 * blockBytes };
  const [port, plain] = [liveCluster([{ ...settings, tiers }]), liveCluster([settings])];
  try {
    await Promise.all([port.ready(), plain.ready()]);
    const rows = await benchTiers({
      ...{ port, plain, vocabSize: 500, prompt: 140, blockTokens: 32, blockBytes, repeats: 2 },
      onProgress: () => {},
    });
    expect(rows.map(({ from, cachedTokens, ssdBlocks }) => [from, cachedTokens, ssdBlocks])).toEqual([
      ['not cached', 0, 0],
      ['pool', 128, 0],
      ['host memory', 128, 0],
      ['SSD', 128, 4],
      ['not cached, without tiers', 0, 0],
    ]);
    expect(rows[2]?.hostBlocks).toBeGreaterThan(0);
    expect(rows[0]?.ratio).toBe(1);
  } finally {
    await Promise.all([port.close(), plain.close()]);
    rmSync(folder, { recursive: true });
  }
});
