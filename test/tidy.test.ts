// The rules that the repository keeps about itself.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../scripts/root.mjs';
import { expectedTsconfigs, roomsWithSources } from '../scripts/write-tsconfigs.mjs';
import { proseBreaches, readPages, remaining } from './tidy/prose.ts';
import { breachesOf } from './tidy/rules.ts';
import { readSourceTree } from './tidy/source-tree.ts';
import { coreOrderBreachesOf, crowdedFoldersOf, importCyclesOf, importGraphOf } from './tidy/structure.ts';

const files = readSourceTree(root);

it('keeps the import rule, the purity of rooms, and sizes', () => {
  expect(files.length).toBeGreaterThan(20);
  expect(breachesOf(files)).toEqual([]);
});

it('keeps folders small, imports free of cycles, and the order of the folders of core/', () => {
  const graph = importGraphOf(files);
  expect(crowdedFoldersOf(files)).toEqual([]);
  expect(importCyclesOf(graph)).toEqual([]);
  expect(coreOrderBreachesOf(graph)).toEqual([]);
});

it('has a TypeScript project for every room, equal to the table of rooms', () => {
  for (const [path, text] of expectedTsconfigs(root)) {
    expect(existsSync(join(root, path)) && readFileSync(join(root, path), 'utf8'), path).toBe(text);
  }
});

it('has at least one test for every room', () => {
  // Composition roots and drivers are tested from outside, over HTTP and the command line.
  const folderOf = (room: string) => (['runtime', 'cli'].includes(room) ? 'e2e' : room);
  const tests = files.map(({ path }) => path).filter((path) => path.endsWith('.test.ts'));
  const untested = roomsWithSources(root).filter(
    (room) => !tests.some((path) => path.startsWith(`test/${folderOf(room)}/`)),
  );
  expect(untested).toEqual([]);
});

it('pins every dependency exactly', () => {
  const { dependencies, devDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const loose = Object.entries({ ...dependencies, ...devDependencies }).filter(
    ([, version]) => !/^\d/.test(`${version}`),
  );
  expect(loose).toEqual([]);
});

it('locks the optional packages of every platform, so that npm ci works on each', () => {
  const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));
  const entries: { optionalDependencies?: Record<string, string> }[] = Object.values(packages);
  const optional = entries.flatMap((entry) => Object.keys(entry.optionalDependencies ?? {}));
  expect(optional.filter((name) => packages[`node_modules/${name}`] === undefined)).toEqual([]);
});

it('uses no words for people for processes, requests or bytes, and keeps Markdown narrow', () => {
  const breaches = [...proseBreaches([...files, ...readPages(root)])];
  const over = breaches.filter(([folder, found]) => found.length > (remaining[folder] ?? 0));
  const report = over.map(([folder, found]) => [
    `${folder}: ${found.length} breaches, at most ${remaining[folder] ?? 0}`,
    ...found,
  ]);
  expect(report.flat().join('\n')).toBe('');
});
