// Host memory and SSD below a live instance's pool: the same answers, and prefixes that are found again.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { InstanceSettings } from '../../../src/cli/serve/worker-settings.ts';
import type { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { counterUniform } from '../../../src/util/counter-random.ts';
import { sharedModels } from '../../engine/goldens.ts';
import { type Answer, admitAll, answerOf, liveCluster, livePrompt, liveRequest, liveSettings } from './instances.ts';

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

function started(own: Partial<InstanceSettings>): Promise<LiveCluster> {
  return startedAll([own]);
}

async function startedAll(instances: Parameters<typeof liveCluster>[0]): Promise<LiveCluster> {
  const cluster = liveCluster(instances, 'memory', admitAll, key);
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

async function closed(cluster: LiveCluster): Promise<void> {
  open.splice(open.indexOf(cluster), 1);
  await cluster.close();
}

/** Resolves when so many blocks are on SSD. */
async function written(cluster: LiveCluster, blocks: number): Promise<void> {
  while ((cluster.snapshot().tiers?.ssd.blocks ?? 0) < blocks) await new Promise((resolve) => setTimeout(resolve, 2));
}

const windowed = `${sharedModels}/random/gemma3`;
const models: (readonly [string, string])[] = [['a model', liveSettings.model]];
if (existsSync(windowed)) models.push(['a model with windows', windowed]);

const prompts = Array.from({ length: 8 }, (_, kind) => livePrompt(kind, 100 + 17 * kind));
const fullBlocks = prompts.reduce((sum, prompt) => sum + Math.floor((prompt.length - 1) / 32), 0);
const ssd = () => ({ path: join(folder, 'instance-0'), bytes: 2 ** 24 });

/** The part of an answer that the client receives; `cachedTokens` may differ. */
const bits = ({ tokens, logprobs, end }: Answer) => ({ tokens, logprobs, end });

async function answersOf(cluster: LiveCluster, round: string, tokens = 6) {
  const answers = [];
  for (const [i, prompt] of prompts.entries())
    answers.push(await answerOf(cluster, liveRequest(`${round}${i}`, prompt, tokens)));
  return answers;
}

const forms = [
  { inputs: 'bf16', kvType: undefined, valueBits: 16 },
  { inputs: 'f32', kvType: undefined, valueBits: 32 },
  { inputs: 'bf16', kvType: 'q8', valueBits: 8.5 },
] as const;

describe.each(forms)('tiers of an instance with $inputs inputs and KV $kvType', ({ inputs, kvType, valueBits }) => {
  it('change no bit of the answers under evictions', async () => {
    // A block of kvasir-tiny has 6 pages of 16 KiB with 16-bit values.
    const blockBytes = (valueBits / 16) * 6 * 2 ** 14;
    const small = { inputs, kvType, contextTokens: 256, kvBytes: 18 * blockBytes };
    const tiers = { hostBytes: 14 * blockBytes, ssd: { path: ssd().path, bytes: 40 * blockBytes } };
    const [alone, tiered] = [await started(small), await started({ ...small, tiers })];
    let drawn = 0;
    const random = { below: (n: number) => Math.floor(n * counterUniform(7, inputs.length, drawn++)) };
    const requests = Array.from({ length: 45 }, (_, i) => {
      const [kind, length, rest] = [random.below(5), 40 + random.below(160), random.below(3)];
      const prompt = [...livePrompt(kind, length), ...livePrompt(11 + rest, 12)];
      return liveRequest(`r${i}`, prompt, 1 + random.below(12));
    });
    const cached = { alone: 0, tiered: 0 };
    for (let i = 0; i < requests.length; i += 3) {
      const some = requests.slice(i, i + 3);
      const expected = await Promise.all(some.map((request) => answerOf(alone, request)));
      const answers = await Promise.all(some.map((request) => answerOf(tiered, request)));
      for (const { cachedTokens = 0 } of expected) cached.alone += cachedTokens;
      for (const { cachedTokens = 0 } of answers) cached.tiered += cachedTokens;
      expect(answers.map(bits)).toEqual(expected.map(bits));
    }
    expect(cached.tiered).toBeGreaterThan(cached.alone);
    const { reads, moved } = tiered.snapshot().tiers ?? {};
    expect((reads?.host ?? 0) + (reads?.ssd ?? 0)).toBeGreaterThan(0);
    expect(moved?.ssdWrittenBytes).toBeGreaterThan(0);
    expect(moved?.badBlocks).toBe(0);
  });
});

describe('SSD below an instance', () => {
  it('returns blocks computed before a restart, with the same bits', async () => {
    const before = await started({ tiers: { hostBytes: undefined, ssd: ssd() } });
    const expected = await answersOf(before, 'a', 1);
    await written(before, fullBlocks);
    await closed(before);
    const after = await started({ tiers: { hostBytes: undefined, ssd: ssd() } });
    const answers = await answersOf(after, 'b', 1);
    expect(answers.map(bits)).toEqual(expected.map(bits));
    expect(answers.map(({ cachedTokens }) => cachedTokens)).toEqual(
      prompts.map(({ length }) => Math.floor((length - 1) / 32) * 32),
    );
    expect(after.snapshot().tiers?.reads).toEqual({ host: 0, ssd: fullBlocks, instance: 0 });
  });

  it('placement uses the blocks of all instances from the start', async () => {
    const both = [0, 1].map((i) => ({
      tiers: { hostBytes: undefined, ssd: { path: join(folder, `instance-${i}`), bytes: 2 ** 24 } },
    }));
    const before = await startedAll(both);
    await Promise.all(prompts.map((prompt, i) => answerOf(before, liveRequest(`a${i}`, prompt, 1))));
    await written(before, fullBlocks);
    expect(before.instances().map(({ tiers }) => (tiers?.ssd.blocks ?? 0) > 0)).toEqual([true, true]);
    await closed(before);
    const after = await startedAll(both);
    // Each instance reports its blocks before the outputs of these requests.
    await Promise.all([1, 2].map((i) => answerOf(after, liveRequest(`x${i}`, livePrompt(90 + i, 20), 2))));
    await answersOf(after, 'b', 1);
    // If reads are slow, another instance may compute the prompt.
    const known = (i: number) =>
      after.requestTrace(`b${i}`)?.placements[0]?.candidates.map(({ matchedTokens }) => matchedTokens);
    expect(prompts.map((_, i) => Math.max(...(known(i) ?? [])))).toEqual(
      prompts.map(({ length }) => Math.floor((length - 1) / 32) * 32),
    );
  });

  it.each(models)('serves prefill and decode instances of %s', async (_, model) => {
    const blockBytes = 6 * 2 ** 14;
    const of = (i: number) => ({
      model,
      kvBytes: 20 * blockBytes,
      tiers: { hostBytes: 30 * blockBytes, ssd: { path: join(folder, `instance-${i}`), bytes: 2 ** 24 } },
    });
    const [alone, apart] = [
      await started({ model }),
      await startedAll([
        { role: 'prefill', ...of(0) },
        { role: 'decode', ...of(1) },
      ]),
    ];
    for (const round of ['a', 'b', 'c'])
      expect((await answersOf(apart, round)).map(bits)).toEqual((await answersOf(alone, round)).map(bits));
    const reads = apart.instances().map(({ tiers }) => (tiers?.reads.host ?? 0) + (tiers?.reads.ssd ?? 0));
    expect(reads[0]).toBeGreaterThan(0);
  });

  it('returns intact blocks and no others after kills at any moment', async () => {
    const own: InstanceSettings = { ...liveSettings, tiers: { hostBytes: undefined, ssd: ssd() } };
    const requests = prompts.map((prompt) => ({ ...liveRequest('', prompt, 4), prompt }));
    const alone = await started({});
    const expected = new Map<string, readonly number[]>();
    for (const [i, prompt] of prompts.entries())
      expected.set(String(prompt), (await answerOf(alone, liveRequest(`a${i}`, prompt, 4))).tokens);
    const hits: number[] = [];
    for (let incarnation = 0; incarnation < 4; incarnation++) {
      // Each incarnation starts with other prompts and is killed after some answers; the last one ends by itself.
      const rotated = requests.map((_, i) => requests[(i + 3 * incarnation) % requests.length]);
      const answers = await childAnswers(
        own,
        rotated,
        incarnation === 3 ? Number.POSITIVE_INFINITY : 2 + ((incarnation * 5) % 7),
      );
      for (const { prompt, tokens, tiers } of answers) {
        expect(tokens).toEqual(expected.get(String(prompt)));
        expect(tiers.moved.badBlocks).toBe(0);
      }
      hits.push(answers.reduce((sum, { cachedTokens }) => sum + cachedTokens, 0));
    }
    expect(hits[0]).toBe(0);
    expect(hits[3]).toBeGreaterThan(0);
  });
});

interface ChildAnswer {
  readonly prompt: readonly number[];
  readonly tokens: readonly number[];
  readonly cachedTokens: number;
  readonly tiers: { readonly moved: { readonly badBlocks: number } };
}

/** The answers of a process that is killed after `most` of them. */
function childAnswers(settings: InstanceSettings, requests: readonly unknown[], most: number): Promise<ChildAnswer[]> {
  const main = join(import.meta.dirname, 'tiers-child.mjs');
  const child = spawn(process.execPath, [main, JSON.stringify({ settings, hashKey: [...key], requests })]);
  const answers: ChildAnswer[] = [];
  return new Promise((resolve, reject) => {
    let errors = '';
    child.stderr.on('data', (data) => {
      errors += String(data);
    });
    createInterface(child.stdout).on('line', (line) => {
      answers.push(JSON.parse(line) as ChildAnswer);
      if (answers.length >= most) child.kill('SIGKILL');
    });
    child.on('close', () => (errors === '' ? resolve(answers) : reject(new Error(errors))));
  });
}

describe('tiers of instances with hand-offs', () => {
  it('remain after a role switch, and their blocks are found in the new role', async () => {
    const of = (i: number) => ({
      kvBytes: 2 ** 22,
      tiers: { hostBytes: 2 ** 23, ssd: { path: join(folder, `instance-${i}`), bytes: 2 ** 24 } },
    });
    const alone = await started({});
    const cluster = await startedAll(
      (['prefill', 'prefill', 'decode'] as const).map((role, i) => ({ role, ...of(i) })),
    );
    // Outputs are long enough that the prefill instance's report arrives before the end, which another thread reports.
    const outputs = 24;
    const expected = await answersOf(alone, 'a', outputs);
    expect((await answersOf(cluster, 'a', outputs)).map(bits)).toEqual(expected.map(bits));
    const blocksOf = (i: number) => cluster.instances()[i]?.tiers?.host.blocks ?? 0;
    const before = blocksOf(0);
    expect(before).toBeGreaterThan(0);
    expect(cluster.switchRole(0, 'decode')).toBeUndefined();
    expect((await answersOf(cluster, 'b', outputs)).map(bits)).toEqual(expected.map(bits));
    expect(blocksOf(0)).toBeGreaterThanOrEqual(before);
    expect(cluster.switchRole(2, 'prefill')).toBeUndefined();
    const answers = await answersOf(cluster, 'c', outputs);
    expect(answers.map(bits)).toEqual(expected.map(bits));
    expect(answers.map(({ cachedTokens }) => cachedTokens)).toEqual(
      prompts.map(({ length }) => Math.floor((length - 1) / 32) * 32),
    );
  });
});
