// The commands of the guide print what the guide shows.
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';
import { difference, runGuide } from './guide-page.ts';

const pages = readdirSync(join(root, 'docs/guide')).filter((name) => name.endsWith('.md'));
const needsNats = (page: string) => readFileSync(join(root, 'docs/guide', page), 'utf8').includes('nats-server');
const hasNats = spawnSync('nats-server', ['--version']).status === 0;

// Beside one another: most of the time of a page is waiting.
for (const page of pages) {
  // CI has the server: there its absence is a failure.
  const test = needsNats(page) && !hasNats && process.env.CI === undefined ? it.skip : it.concurrent;
  test(`runs the commands of ${page}`, async () => {
    expect((await runGuide(`docs/guide/${page}`)).join('\n')).toBe('');
  });
}

it('compares output with its ellipses', () => {
  expect(difference('a ... c\n', 'a b  c\n', true)).toBeUndefined();
  expect(difference('a\n...\nc\n', 'a\nb\nb\nc\n', true)).toBeUndefined();
  expect(difference('a\nc\n', 'a\nb\nc\n', true)).toBeDefined();
  expect(difference('b\n', 'a\nb\nc\n', false)).toBeUndefined();
  expect(difference('b\n', 'a\nb\nc\n', true)).toBeDefined();
});
