// The bench of pipeline groups over real instances: the first token arrives, and prompt chunks are counted.
import { expect, it } from 'vitest';
import { benchPipeline } from '../../src/bench/pipeline.ts';
import { loadNative } from '../../src/kernel/native/native.ts';
import { admitAll, liveCluster } from '../runtime/threads/instances.ts';

it.skipIf(loadNative() === undefined)('counts the chunks of prompts that a group computed', async () => {
  const opened = (prefills: number) => {
    const roles = [...Array.from({ length: prefills }, () => 'prefill' as const), 'decode' as const];
    const instances = roles.map((role) => ({ role, contextTokens: 1024 }));
    const pipeline = prefills === 1 ? undefined : { members: prefills, tokensOver: 0 };
    return liveCluster(instances, 'memory', admitAll, undefined, false, pipeline);
  };
  const [alone, group] = [opened(1), opened(2)];
  try {
    await Promise.all([alone.ready(), group.ready()]);
    const options = { alone, group, countedMs: 0, vocabSize: 500, prompts: [700], repeats: 1, onProgress: () => {} };
    const [row] = await benchPipeline(options);
    expect(row?.faster).toBeGreaterThan(0);
    // Of 128 or 256 tokens.
    expect([3, 6]).toContain(row?.chunks);
  } finally {
    await Promise.all([alone.close(), group.close()]);
  }
});
