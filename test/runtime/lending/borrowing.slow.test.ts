// Instances of a process that lend to one another: requests longer than every pool, the bits of one instance, and no leaks.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { sparseSettings } from '../../../src/cli/options/sparse-options.ts';
import type { InstanceSnapshot } from '../../../src/core/protocol/ports.ts';
import { availableIsas, loadNative } from '../../../src/kernel/native/native.ts';
import type { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { answerOf, borrowingCluster, cancelled, liveCluster, livePrompt, liveRequest } from '../threads/instances.ts';

const native = loadNative();
const folder = mkdtempSync(join(tmpdir(), 'kvasir-borrowing-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const open: LiveCluster[] = [];
afterEach(() => Promise.all(open.splice(0).map((cluster) => cluster.close())));

/** Host memory and SSD for more blocks than the pool has. */
const tiersOf = (instance: number) => ({
  tiers: { hostBytes: 2 ** 23, ssd: { path: join(folder, `instance-${instance}`), bytes: 2 ** 24 } },
});

async function started(cluster: LiveCluster): Promise<LiveCluster> {
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

/** Resolves when all instances are idle and nothing is lent. */
async function atRest(cluster: LiveCluster): Promise<void> {
  const busy = () =>
    cluster.instances().some(({ ready, waiting, running, pages, lending }) => {
      const held = waiting + running + pages.used + (lending?.lentBlocks ?? 0) + (lending?.borrowedBlocks ?? 0);
      return ready && held > 0;
    });
  while (busy()) await new Promise((resolve) => setTimeout(resolve, 5));
}

describe.skipIf(native === undefined)('instances of a process that borrow and hand off', () => {
  it('kept tokens beside requests with full KV that exceed the decode instances', async () => {
    const sparse = sparseSettings({ sparse: 'uniform', sparseBudget: 64 });
    const alone = await started(liveCluster([{ sparse, contextTokens: 8192, kvBytes: 64 * 2 ** 20 }]));
    const each = (['prefill', 'decode', 'decode'] as const).map((role) => ({ role }));
    const cluster = await started(borrowingCluster([70, 40, 40], {}, { sparse }, each));
    const short = Array.from({ length: 4 }, (_, i) => liveRequest(`r${i}`, livePrompt(i, 80 + 70 * i), 12));
    const budgeted = short.map((one, i) => (i % 2 === 0 ? { ...one, kvBudget: 'full' as const } : one));
    const requests = [{ ...liveRequest('long', livePrompt(5, 1_400), 12), kvBudget: 'full' as const }, ...budgeted];
    const answersOf = (to: LiveCluster) => Promise.all(requests.map((one) => answerOf(to, one)));
    const [expected, answers] = await Promise.all([answersOf(alone), answersOf(cluster)]);
    for (const [i, { tokens, logprobs, end }] of answers.entries()) {
      expect(end).toEqual({ kind: 'finished', reason: 'length' });
      expect([tokens, logprobs]).toEqual([expected[i].tokens, expected[i].logprobs]);
    }
    const [prefill, ...decode] = cluster.instances();
    expect(prefill.sparse?.selections).toBe(2);
    expect(decode.reduce((sum, { lending }) => sum + (lending?.movedBlocks ?? 0), 0)).toBeGreaterThan(0);
    await atRest(cluster);
  });
});

describe.skipIf(native === undefined)('instances of a process that borrow', () => {
  const isa = native === undefined ? 'portable' : (availableIsas(native).at(-1) ?? 'portable');
  const apart = (['prefill', 'decode', 'prefill', 'decode'] as const).map((role) => ({ role }));

  it.each([
    ['bf16', 'coupled', 'memory'],
    ['int8', 'apart', 'memory'],
    ['f32', 'apart', 'shared'],
  ] as const)(
    `give the bits of one large instance: inputs %s, %s, over %s, ${isa}`,
    async (inputs, roles, transport) => {
      const alone = await started(liveCluster([{ inputs, contextTokens: 8192, kvBytes: 128 * 2 ** 20 }]));
      // Mixed instances have host memory for the blocks that exceed their pools.
      const [pools, lentHostBytes, each] = roles === 'coupled' ? [[40, 40], 2 ** 22, []] : [[40, 40, 40, 40], 0, apart];
      const cluster = await started(
        borrowingCluster(pools, { lentHostBytes, remoteCacheMs: 2_000 }, { inputs }, each, transport),
      );
      const long = liveRequest('long', livePrompt(1, 3_200), 40);
      const [expected, answer] = await Promise.all([answerOf(alone, long), answerOf(cluster, long)]);
      expect(answer.end).toEqual({ kind: 'finished', reason: 'length' });
      expect([answer.tokens, answer.logprobs]).toEqual([expected.tokens, expected.logprobs]);
      // The next turn starts after the blocks cached at home and at creditors.
      const next = liveRequest('next', livePrompt(1, 3_400), 8);
      const [same, turn] = await Promise.all([answerOf(alone, next), answerOf(cluster, next)]);
      expect([turn.tokens, turn.logprobs]).toEqual([same.tokens, same.logprobs]);
      expect(turn.cachedTokens).toBeGreaterThan(roles === 'coupled' ? 3_200 - 1_280 : 0);
      const sum = (of: (snapshot: InstanceSnapshot) => number | undefined) =>
        cluster.instances().reduce((all, instance) => all + (of(instance) ?? 0), 0);
      expect(sum(({ lending }) => lending?.movedBlocks)).toBeGreaterThanOrEqual(64);
      expect(sum(({ lending }) => lending?.hostBlocks) > 0).toBe(roles === 'coupled');
      expect(sum(({ sent }) => sent?.pages)).toBe(roles === 'apart' ? (100 + 107) * 6 : 0);
      await atRest(cluster);
      // Ranges are copied while the next chunk is computed. On a busy machine that may need several prompts.
      for (let kind = 2; sum(({ lending }) => lending?.overlappedBytes) === 0; kind++)
        await answerOf(cluster, liveRequest(`early ${kind}`, livePrompt(kind, 3_200), 1));
    },
  );

  it.each(['ring', 'auto'] as const)(
    'give these bits where keys may travel to the rows: %s',
    async (remoteAttention) => {
      const alone = await started(liveCluster([{ contextTokens: 4096, kvBytes: 64 * 2 ** 20 }]));
      const cluster = await started(borrowingCluster([40, 40], { remoteAttention }));
      const long = liveRequest('long', livePrompt(3, 1_700), 12);
      const [expected, answer] = await Promise.all([answerOf(alone, long), answerOf(cluster, long)]);
      expect([answer.tokens, answer.logprobs]).toEqual([expected.tokens, expected.logprobs]);
      const remote = cluster.instances().flatMap(({ lending }) => lending?.remoteAttention ?? []);
      const queries = remote.reduce((sum, one) => sum + one.queries, 0);
      const keyBytes = remote.reduce((sum, one) => sum + (one.keyBytes ?? 0), 0);
      expect(queries + keyBytes).toBeGreaterThan(0);
      if (remoteAttention === 'ring') expect([queries, keyBytes > 0]).toEqual([0, true]);
      await atRest(cluster);
    },
  );

  it.each([
    ['with host memory and SSD', 2 ** 22, 'dist', [0, 1, 2].map(tiersOf)],
    ['with hand-offs', 0, 'ring', (['prefill', 'decode', 'mixed'] as const).map((role) => ({ role }))],
  ] as const)(
    'stay correct under cancels and crashes: %s',
    async (_name, lentHostBytes, remoteAttention, each) => {
      const alone = await started(liveCluster([{ contextTokens: 8192, kvBytes: 128 * 2 ** 20 }]));
      const cluster = await started(
        borrowingCluster([40, 40, 48], { lowWater: 0.05, lentHostBytes, remoteAttention }, {}, each),
      );
      const spec = fc.record({
        kind: fc.nat(5),
        length: fc.integer({ min: 1, max: 1_700 }),
        output: fc.integer({ min: 1, max: 60 }),
        /** Cancelled after so many events: 0, at once. */
        cancelAfter: fc.option(fc.nat(20), { nil: undefined, freq: 3 }),
      });
      let run = 0;
      const load = fc.asyncProperty(fc.array(spec, { minLength: 1, maxLength: 6 }), async (specs) => {
        run++;
        const ended = specs.map(async ({ kind, length, output, cancelAfter }, i) => {
          const request = liveRequest(`${run}.${i}`, livePrompt(kind, length), output);
          if (cancelAfter !== undefined) return cancelled(cluster, request, cancelAfter);
          const [answer, expected] = await Promise.all([answerOf(cluster, request), answerOf(alone, request)]);
          if (answer.end.kind === 'failed')
            expect([answer.end.code, answer.end.message]).toEqual([
              'CONTEXT_TOO_LONG',
              expect.stringMatching(/^Cannot .*\d/),
            ]);
          else expect([answer.tokens, answer.logprobs]).toEqual([expected.tokens, expected.logprobs]);
        });
        await Promise.all(ended);
        await atRest(cluster);
      });
      const long = liveRequest('long', livePrompt(8, 2_200), 30);
      const alike = await Promise.all([answerOf(cluster, long), answerOf(alone, long)]);
      expect(alike[0]).toEqual(alike[1]);
      // With host memory, blocks at creditors are cached there too.
      const again = await answerOf(cluster, { ...long, id: 'again' });
      expect({ ...again, cachedTokens: 0 }).toEqual({ ...alike[1], cachedTokens: 0 });
      expect((again.cachedTokens ?? 0) >= 16 * 32).toBe(lentHostBytes > 0);
      await fc.assert(load, { numRuns: 1, endOnFailure: true });
      const moved = cluster.instances().map(({ lending }) => lending?.movedBlocks ?? 0);
      expect(moved.reduce((sum, blocks) => sum + blocks, 0)).toBeGreaterThan(0);
      // One instance fails under load; the others continue.
      const dying = liveRequest('last straw', livePrompt(9, 900), 40);
      await Promise.all([fc.assert(load, { numRuns: 1 }), answerOf(cluster, dying)]);
      expect(cluster.instances().filter(({ ready }) => ready)).toHaveLength(2);
      await fc.assert(load, { numRuns: 1 });
    },
    120_000,
  );
});
