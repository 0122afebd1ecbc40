// Several real instances behind one port: shared weights, cache-aware placement, and independent failures.
import { afterEach, describe, expect, it } from 'vitest';
import type { Grammar } from '../../../src/core/protocol/grammar.ts';
import type { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { answerOf, liveCluster, livePrompt, liveRequest } from './instances.ts';

const open: LiveCluster[] = [];
afterEach(() => Promise.all(open.splice(0).map((cluster) => cluster.close())));

async function started(instances: number): Promise<LiveCluster> {
  const cluster = liveCluster(Array.from({ length: instances }, () => ({})));
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

const grammar: Grammar = { kind: 'regex', text: '([a-f]{3} ){200}' };
const prompts = Array.from({ length: 9 }, (_, kind) => livePrompt(kind, 40 + 13 * kind));

describe('instances on worker threads', () => {
  it('give the answers of one instance, each with a part of the load', async () => {
    const alone = await started(1);
    const three = await started(3);
    const answersOf = (cluster: LiveCluster) =>
      Promise.all(prompts.map((prompt, i) => answerOf(cluster, liveRequest(`r${i}`, prompt, 12))));
    const [expected, answers] = await Promise.all([answersOf(alone), answersOf(three)]);
    expect(answers).toEqual(expected);
    expect(three.instances().map(({ promptTokens }) => promptTokens > 0)).toEqual([true, true, true]);
    expect(three.snapshot().generatedTokens).toBe(9 * 12);
    expect(three.snapshot().pages.used).toBe(0);
  });

  it('receive the requests of which they hold the prefix', async () => {
    const cluster = await started(3);
    for (const round of [1, 2]) {
      for (const [i, prompt] of prompts.entries()) {
        const { cachedTokens } = await answerOf(cluster, liveRequest(`r${round}.${i}`, prompt, 2));
        expect(cachedTokens).toBe(round === 1 ? 0 : Math.floor((prompt.length - 1) / 32) * 32);
      }
    }
  });

  it('continue the requests of a failed instance with the same bits', async () => {
    const cluster = await started(2);
    const ids = prompts.map((_, i) => i);
    // Every third request has a grammar, whose matcher is built again from the tokens so far.
    const requestOf = (id: string, i: number) => ({
      ...liveRequest(id, prompts[i] ?? [], 40),
      ...(i % 3 === 0 && { grammar }),
    });
    const expected = await Promise.all(ids.map((i) => answerOf(cluster, requestOf(`a${i}`, i))));
    const answers = ids.map((i) => answerOf(cluster, requestOf(`b${i}`, i)));
    const last = answerOf(cluster, requestOf('last straw', 0));
    expect((await Promise.all([...answers, last])).map(({ tokens, logprobs, end }) => [tokens, logprobs, end])).toEqual(
      [...expected, expected[0]].map((answer) => [answer?.tokens, answer?.logprobs, answer?.end]),
    );
    expect(cluster.instances().filter(({ ready }) => ready)).toHaveLength(1);
  });

  it('lose only their own requests when they fail, and the shared weights remain', async () => {
    const cluster = await started(3);
    const expected = await Promise.all(prompts.map((prompt, i) => answerOf(cluster, liveRequest(`a${i}`, prompt, 30))));
    // The first instance loaded the weights; all are idle, so it receives the request. Then the request is retried once.
    const death = await answerOf(cluster, liveRequest('deadly', [1, 2, 3], 4));
    expect(death.end).toMatchObject({ kind: 'failed', code: 'ENGINE_FAILED' });
    expect(cluster.instances().filter(({ ready }) => ready)).toHaveLength(1);
    expect(cluster.snapshot().ready).toBe(true);
    const answers = await Promise.all(prompts.map((prompt, i) => answerOf(cluster, liveRequest(`b${i}`, prompt, 30))));
    expect(answers.map(({ tokens, logprobs }) => [tokens, logprobs])).toEqual(
      expected.map(({ tokens, logprobs }) => [tokens, logprobs]),
    );
    await answerOf(cluster, liveRequest('deadly 2', [1, 2, 3], 4));
    await cluster.ended;
    expect((await answerOf(cluster, liveRequest('late', [1, 2, 3], 4))).end).toMatchObject({ code: 'NOT_READY' });
  });
});
