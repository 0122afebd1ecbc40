// A minimum of output tokens: stop tokens are forbidden until it is reached.
import { expect, test } from 'vitest';
import { RunningGeneration } from '../../../src/core/scheduler/executor/generation-request.ts';
import { request } from '../instance-world.ts';

test('a stop token is forbidden before the minimum of tokens, and the bias of the client stays', () => {
  const own = request('a', [1, 2], { maxTokens: 5, minTokens: 2, stopTokenIds: [7] });
  const withBias = { ...own, sampling: { ...own.sampling, logitBias: [[3, 1.5] as const] } };
  const running = new RunningGeneration(withBias, new Uint32Array(8), 0, { groups: 1, isWhole: false });
  const bias = (): readonly [number, number][] =>
    [...running.biasTokens].map((token, i) => [token, running.biasValues[i] ?? 0]);
  for (const token of [4, 5]) {
    expect(bias()).toEqual([
      [3, 1.5],
      [7, Math.fround(-1e30)],
    ]);
    expect(running.append(token)).toBeUndefined();
  }
  expect(bias()).toEqual([[3, 1.5]]);
  expect(running.append(7)).toBe('stop');
});
