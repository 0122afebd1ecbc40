// A store among live instances: prefixes that it returns after their instance has crashed have the same bits.
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { InstanceSettings } from '../../../src/cli/serve/worker-settings.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import type { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { sharedModels } from '../../engine/goldens.ts';
import { type Answer, admitAll, answerOf, liveCluster, livePrompt, liveRequest } from './instances.ts';

const key = Uint32Array.of(1, 2, 3, 4);
const open: LiveCluster[] = [];
let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvasir-stores-'));
});
afterEach(async () => {
  await Promise.all(open.splice(0).map((cluster) => cluster.close()));
  rmSync(folder, { recursive: true, force: true });
});

async function started(instances: Parameters<typeof liveCluster>[0]): Promise<LiveCluster> {
  const cluster = liveCluster(instances, 'memory', admitAll, key, true);
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

const store = () =>
  ({
    role: 'store',
    tiers: { hostBytes: 2 ** 24, ssd: { path: join(folder, 'store'), bytes: 2 ** 25 } },
  }) as const;

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 2));
}

const bits = ({ tokens, logprobs, end }: Answer) => ({ tokens, logprobs, end });
interface Case {
  readonly prompt: number[];
  readonly own: Partial<InstanceSettings>;
}
/** Long enough that a fetch is predicted to be faster: its prefill takes 0.4 s or more by the initial estimate. */
const whole: Case = { prompt: livePrompt(1, 4010), own: { kvBytes: 2 ** 24, contextTokens: 4096 } };
const windowed = `${sharedModels}/random/gemma3`;
/** Host memory of the instance has the blocks behind a window. */
const inWindows: Case = {
  prompt: livePrompt(1, 2010),
  own: { model: windowed, kvBytes: 2 ** 24, contextTokens: 2048, tiers: { hostBytes: 2 ** 24, ssd: undefined } },
};
const cases = [
  ['a model', whole] as const,
  ...(existsSync(windowed) ? [['a model with windows', inWindows] as const] : []),
];
/** A request that crashes its instance. */
const deadly = (name: string) => liveRequest(`deadly ${name}`, livePrompt(60, 20), 1);

it.skipIf(loadNative() === undefined).each(cases)(
  'returns the bits of prefixes of %s after their instance has crashed',
  async (_, { prompt, own }) => {
    const wholeBlocks = Math.floor((prompt.length - 1) / 32);
    const cluster = await started([own, { ...own, ...store() }]);
    const first = await answerOf(cluster, liveRequest('a', prompt, 6));
    expect(first.cachedTokens).toBe(0);
    await until(() => (cluster.instances()[1]?.store?.takenBlocks ?? 0) >= wholeBlocks);
    const taken = cluster.instances()[1]?.store;
    expect(taken?.takenBytes).toBe((taken?.takenBlocks ?? 0) * 6 * 2 ** 14);
    // The instance restarts with an empty cache; the store keeps its blocks.
    await answerOf(cluster, deadly('one'));
    await until(() => cluster.instances()[0]?.ready === true && cluster.instances()[0]?.pages.cached === 0);
    // Right after the restart placement may choose to compute the prompt.
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const answer = await answerOf(cluster, liveRequest('b', prompt, 6));
    expect([bits(answer), answer.cachedTokens]).toEqual([bits(first), 32 * wholeBlocks]);
    expect(cluster.instances()[1]?.store?.sentBlocks).toBeGreaterThanOrEqual(wholeBlocks);
    // Blocks of the output may still be in flight to the store.
    await until(() => cluster.snapshot().pages.used === 0);
  },
);
