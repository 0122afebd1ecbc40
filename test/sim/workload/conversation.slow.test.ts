// A production trace: its state hash, the effect of cache-aware placement, and of groups for long prompts.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../../scripts/root.mjs';

const trace = join(root, '..', 'shared', 'traces', 'mooncake', 'conversation_trace.jsonl.gz');

function simulate(requests: number, ...options: readonly string[]) {
  const flags = ['--trace', trace, '--slice', `0..${requests}`, ...options, '--json'];
  const { stdout } = spawnSync(process.execPath, [join(root, 'bundle', 'cli', 'main.js'), 'simulate', ...flags], {
    encoding: 'utf8',
  });
  return JSON.parse(stdout.trim().split('\n').at(-1) ?? '');
}

it.skipIf(!existsSync(trace))(
  'cache-aware placement has a mean TTFT at least 14 % below least-loaded (needs ../shared/traces)',
  () => {
    const aware = simulate(3000, '--placement', 'cache-aware');
    const least = simulate(3000, '--placement', 'least-loaded');
    expect(aware.completed).toBe(3000);
    expect(aware.ttftMs.mean).toBeLessThan(0.86 * least.ttftMs.mean);
    expect(aware.hitRatioBlocks).toBeGreaterThan(2 * least.hitRatioBlocks);
    // The same prompts: every block is a hit or has a reason.
    const blocks = ({ hitRatioBlocks, missReasons }: typeof aware) => {
      const missed = Object.values<number>(missReasons).reduce((sum, count) => sum + count, 0);
      return missed / (1 - hitRatioBlocks);
    };
    expect(blocks(aware)).toBeCloseTo(blocks(least), 3);
  },
);

it.skipIf(!existsSync(trace))(
  'groups for long prompts reduce the highest TTFTs, and do not increase the others (needs ../shared/traces)',
  () => {
    const cluster = ['--prefill', '6', '--decode', '2'];
    const alone = simulate(1000, ...cluster);
    const together = simulate(1000, ...cluster, '--cpp-group', '6', '--cpp-tokens', '60000');
    expect([together.completed, together.groupPrefills > 20]).toEqual([1000, true]);
    expect(together.ttftMs.mean).toBeLessThan(alone.ttftMs.mean);
    expect(together.ttftMs.p99).toBeLessThan(0.9 * alone.ttftMs.p99);
    // Their blocks are not lost as cache.
    expect(together.hitRatioBlocks).toBeGreaterThan(0.95 * alone.hitRatioBlocks);
  },
);

it.skipIf(!existsSync(trace))(
  'the whole trace has a fixed state hash: no decision and no time of its run changes unnoticed (needs ../shared/traces)',
  () => {
    // The blocks are given, so that rules for the memory that is left for KV do not change the run.
    const { requests, stateHash } = simulate(12_031, '--cache-blocks', '2946');
    expect([requests, stateHash]).toEqual([12_031, '847280a9cd50e654']);
  },
);
