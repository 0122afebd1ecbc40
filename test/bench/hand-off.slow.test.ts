// The bench of hand-offs over real instances: every page of a prompt is copied, and counted, once.
import { expect, it } from 'vitest';
import { benchHandOff } from '../../src/bench/hand-off.ts';
import { loadNative } from '../../src/kernel/native/native.ts';
import { liveCluster } from '../runtime/threads/instances.ts';

it.skipIf(loadNative() === undefined)('counts the pages of whole prompts', async () => {
  const disaggregated = (sendsAtEnd: boolean) => liveCluster([{ role: 'prefill', sendsAtEnd }, { role: 'decode' }]);
  const [alone, pair, atEnd] = [liveCluster([{}]), disaggregated(false), disaggregated(true)];
  try {
    await Promise.all([alone.ready(), pair.ready(), atEnd.ready()]);
    const rows = await benchHandOff({
      alone,
      pair,
      atEnd,
      vocabSize: 500,
      prompts: [30, 200],
      repeats: 2,
      onProgress: () => {},
    });
    const [short, long] = rows.map(({ bytes }) => bytes);
    expect(short).toBeGreaterThan(0);
    // 1 and 7 blocks of 32 tokens.
    expect(long).toBe(7 * (short ?? 0));
    // Instances on threads record the steps of prompts: the part after the last one is known.
    for (const { aloneAfterMs, apartAfterMs, atEndAfterMs } of rows)
      for (const afterMs of [aloneAfterMs, apartAfterMs, atEndAfterMs]) expect(afterMs).toBeTypeOf('number');
    for (const { aloneMs, apartMs, atEndMs, early, firstPageAt } of rows) {
      expect(Math.min(aloneMs, apartMs, atEndMs)).toBeGreaterThan(0);
      expect(early).toBeGreaterThanOrEqual(0);
      expect(early).toBeLessThanOrEqual(1);
      expect(firstPageAt).toBeGreaterThan(0);
      expect(firstPageAt).toBeLessThanOrEqual(1);
    }
  } finally {
    await Promise.all([alone.close(), pair.close(), atEnd.close()]);
  }
});
