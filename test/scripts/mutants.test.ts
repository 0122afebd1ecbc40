// The mutants of `npm run mutants`: every patch applies to the sources, and names a test. That the test fails with it takes
// minutes, and is checked by a scheduled job.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const folder = join(root, 'test', 'mutants');

it.each(['runtime', 'gateway', 'native'])('has at least eight patches of %s that apply and name a test', (area) => {
  const patches = readdirSync(join(folder, area)).map((name) => join(folder, area, name));
  expect(patches.length).toBeGreaterThanOrEqual(8);
  for (const patch of patches) {
    const test = /^Found by: (\S+)$/m.exec(readFileSync(patch, 'utf8'))?.[1] ?? '';
    expect(existsSync(join(root, test)), `${patch}: ${test}`).toBe(true);
    const args = ['apply', '--check', '--ignore-whitespace', '-C1', patch];
    const { stderr } = spawnSync('git', args, {
      cwd: root,
      encoding: 'utf8',
      env: { ...process.env, GIT_DIR: '/none' },
    });
    expect(stderr).toBe('');
  }
});
