// Prefix fetch between instances of one process, with and without lower tiers: the bits of one instance.
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import type { InstanceSettings } from '../../../src/cli/serve/worker-settings.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import type { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { sharedModels } from '../../engine/goldens.ts';
import {
  answerOf,
  borrowingCluster,
  liveCluster,
  livePrompt,
  liveRequest,
  liveSettings,
} from '../threads/instances.ts';

const open: LiveCluster[] = [];
const folder = mkdtempSync(join(tmpdir(), 'kvasir-fetch-'));
afterEach(async () => {
  await Promise.all(open.splice(0).map((cluster) => cluster.close()));
  rmSync(folder, { recursive: true, force: true });
});

/** @param instances none: two that borrow */
async function started(instances: readonly Partial<InstanceSettings>[], way: 'memory' | 'tcp'): Promise<LiveCluster> {
  const cluster = instances.length === 0 ? borrowingCluster([60, 60]) : liveCluster(instances, way);
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

/** Rounds until something was fetched. */
const roundsMax = 30;

const tiersOf = (i: number): Partial<InstanceSettings> => ({
  tiers: { hostBytes: 2 ** 23, ssd: { path: join(folder, `instance-${i}`), bytes: 2 ** 23 } },
});
const windowed = `${sharedModels}/random/gemma3`;
const withWindows = { model: windowed, tiers: { hostBytes: 2 ** 23, ssd: undefined } };
const cases = [
  ['between pools', [{}, {}], 'memory'],
  ['between pools over tcp', [{}, {}], 'tcp'],
  ['between pools of instances that borrow', [], 'memory'],
  ['to host memory', [tiersOf(0), tiersOf(1)], 'memory'],
  ['to host memory, of a model with windows,', [withWindows, withWindows], 'memory'],
] as readonly (readonly [string, readonly Partial<InstanceSettings>[], 'memory' | 'tcp'])[];

const possible = cases.filter(([name]) => !name.includes('windows') || existsSync(windowed));

describe.skipIf(loadNative() === undefined)('a prefix that another instance has', () => {
  it.each(possible)('is fetched %s when that is faster than waiting or computing', async (_, instances, way) => {
    const { model = liveSettings.model } = instances[0] ?? {};
    const [alone, cluster] = [await started([{ model }], 'memory'), await started(instances, way)];
    const fetched = () => cluster.instances().reduce((sum, { sent }) => sum + (sent?.bytes ?? 0), 0);
    let rounds = 0;
    for (; rounds < roundsMax && fetched() === 0; rounds++) {
      const round = rounds;
      const prefix = livePrompt(round, 400);
      const request = (name: string, tail: number) =>
        liveRequest(`${name}${round}.${tail}`, [...prefix, ...livePrompt(tail + 50, 20)], 4);
      // One instance has the prefix; then more requests arrive than it can serve.
      await answerOf(cluster, request('first', 0));
      const tails = Array.from({ length: 10 }, (_, tail) => tail + 1);
      const answers = await Promise.all(tails.map((tail) => answerOf(cluster, request('r', tail))));
      const expected = await Promise.all(tails.map((tail) => answerOf(alone, request('r', tail))));
      expect(answers.map(({ tokens, logprobs, end }) => ({ tokens, logprobs, end }))).toEqual(
        expected.map(({ tokens, logprobs, end }) => ({ tokens, logprobs, end })),
      );
    }
    expect(fetched()).toBeGreaterThan(0);
    const links = cluster.instances().flatMap(({ links: own = [] }) => own);
    expect(links.reduce((sum, { bytes }) => sum + bytes, 0)).toBeGreaterThanOrEqual(fetched());
    // Both instances have the requested prefix now, as their KV events report to the conductor.
    const last = liveRequest('last', [...livePrompt(rounds - 1, 400), 9], 1);
    await answerOf(cluster, last);
    const [placed] = cluster.requestTrace('last')?.placements ?? [];
    expect(placed?.candidates.map(({ matchedTokens }) => matchedTokens >= 384)).toEqual([true, true]);
    expect(cluster.snapshot().pages.used).toBe(0);
  });
});
