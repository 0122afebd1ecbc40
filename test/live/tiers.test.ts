// Host memory and SSD below a live instance's pool: the same answers, and prefixes that are found again.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { InstanceSettings } from '../../src/cli/worker-settings.ts';
import type { LiveCluster } from '../../src/live/live-cluster.ts';
import { answerOf, everyone, liveCluster, livePrompt, liveRequest } from './instances.ts';

const key = Uint32Array.of(1, 2, 3, 4);
let folder: string;
const open: LiveCluster[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvasir-tiers-'));
});
afterEach(async () => {
  await Promise.all(open.splice(0).map((cluster) => cluster.close()));
  rmSync(folder, { recursive: true, force: true });
});

/** Room for so many blocks of kvasir-tiny. */
async function started(own: Partial<InstanceSettings>): Promise<LiveCluster> {
  const cluster = liveCluster([own], 'memory', everyone, key);
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

async function closed(cluster: LiveCluster): Promise<void> {
  open.splice(open.indexOf(cluster), 1);
  await cluster.close();
}

/** Resolves when all that it computed is on SSD. */
async function written(cluster: LiveCluster, blocks: number): Promise<void> {
  while ((cluster.snapshot().tiers?.ssd.blocks ?? 0) < blocks) await new Promise((resolve) => setTimeout(resolve, 2));
}

const prompts = Array.from({ length: 8 }, (_, kind) => livePrompt(kind, 100 + 17 * kind));
const fullBlocks = prompts.reduce((sum, prompt) => sum + Math.floor((prompt.length - 1) / 32), 0);
const ssd = () => ({ path: join(folder, 'instance-0'), bytes: 2 ** 24 });

async function ask(cluster: LiveCluster, round: string, tokens = 6) {
  const answers = [];
  for (const [i, prompt] of prompts.entries())
    answers.push(await answerOf(cluster, liveRequest(`${round}${i}`, prompt, tokens)));
  return answers;
}

describe('SSD below an instance', () => {
  it('has what was computed before a restart, with the same bits', async () => {
    const before = await started({ tiers: { hostBytes: undefined, ssd: ssd() } });
    const expected = await ask(before, 'a', 1);
    await written(before, fullBlocks);
    await closed(before);
    const after = await started({ tiers: { hostBytes: undefined, ssd: ssd() } });
    const answers = await ask(after, 'b', 1);
    expect(answers.map(({ tokens, logprobs }) => ({ tokens, logprobs }))).toEqual(
      expected.map(({ tokens, logprobs }) => ({ tokens, logprobs })),
    );
    expect(answers.map(({ cachedTokens }) => cachedTokens)).toEqual(
      prompts.map(({ length }) => Math.floor((length - 1) / 32) * 32),
    );
    expect(after.snapshot().tiers?.reads).toEqual({ host: 0, ssd: fullBlocks, instance: 0 });
  });
});
