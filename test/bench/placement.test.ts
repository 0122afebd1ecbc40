// The placement bench on a few instances: the contents of its index, and the hits of its prompts.
import { expect, test } from 'vitest';
import { benchPlacement } from '../../src/bench/placement.ts';
import { WorkloadGenerator } from '../../src/trace/workload/generator.ts';
import { presets } from '../../src/trace/workload/presets.ts';

test('fills the index to the requested blocks and replicas, and times every prompt', () => {
  const generator = new WorkloadGenerator(presets.real, { seed: 1, blockTokens: 512 });
  const prompts = Array.from({ length: 40 }, () => generator.next());
  const lines: string[] = [];
  const report = benchPlacement({
    prompts,
    blockTokens: 512,
    instances: 9,
    blocks: 5000,
    replicas: 3,
    repeats: 2,
    onProgress: (line) => lines.push(line),
  });
  const full = prompts.map(({ inputTokens }) => Math.floor(inputTokens / 512));
  expect(report).toMatchObject({ instances: 9, prompts: 40 });
  expect(report.blocks).toBeGreaterThanOrEqual(5000);
  expect(report.blocks).toBeLessThan(5000 + Math.max(...full) + 1);
  expect(report.replicas).toBeGreaterThanOrEqual(3);
  expect(report.replicas).toBeLessThan(3.2);
  expect(report.blocksOfPrompt).toBeCloseTo(full.reduce((sum, count) => sum + count, 0) / 40, 2);
  // A prompt of less than two blocks may have none that could be reused.
  expect(report.matchedPrompts).toBe(prompts.filter(({ inputTokens }) => inputTokens > 512).length);
  const { p50, p99, max } = report.decisionUs;
  expect(p50).toBeGreaterThan(0);
  expect([p99 >= p50, max >= p99]).toEqual([true, true]);
  expect(lines).toHaveLength(3);
});
