// Placement on a production trace: what sending prompts to their prefixes is worth.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const trace = join(root, '..', 'shared', 'traces', 'mooncake', 'conversation_trace.jsonl.gz');

function simulate(placement: string) {
  const flags = ['--trace', trace, '--slice', '0..3000', '--placement', placement, '--json'];
  const { stdout } = spawnSync(process.execPath, [join(root, 'dist', 'cli', 'main.js'), 'simulate', ...flags], {
    encoding: 'utf8',
  });
  return JSON.parse(stdout.trim().split('\n').at(-1) ?? '');
}

it.skipIf(!existsSync(trace))(
  'cache-aware placement takes at least 14 % from the mean time to the first token of least-loaded (needs ../shared/traces)',
  () => {
    const aware = simulate('cache-aware');
    const least = simulate('least-loaded');
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
