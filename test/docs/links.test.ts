// What the pages name exists: files, headings, identifiers, options and metrics.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';
import { readSourceTree } from '../tidy/source-tree.ts';
import { brokenLinks, codeOf, missingPaths, readPages } from './pages.ts';

const pages = readPages();
const sources = readSourceTree(root).filter(({ path }) => !path.startsWith('test/docs/'));
const textOf = (...folders: readonly string[]) =>
  sources
    .filter(({ path }) => folders.some((folder) => path.startsWith(folder)))
    .map(({ text }) => text)
    .join('\n');

it('links to files and headings that exist', () => {
  expect(pages.flatMap((page) => brokenLinks(page, pages))).toEqual([]);
});

it('names paths that exist', () => {
  expect(pages.flatMap(missingPaths)).toEqual([]);
});

it('names identifiers that exist', () => {
  // Names of other systems, and of files, are on the page of words, and in those of models and tools.
  const foreign = ['docs/glossary.md', 'docs/reference/models.md', 'models/', 'tools/'];
  const known = new Set(textOf('src/', 'native/', 'scripts/').match(/\b[A-Za-z]\w+/g));
  const unknown = pages
    .filter(({ path }) => !foreign.some((start) => path.startsWith(start)))
    .flatMap(({ path, text }) =>
      codeOf(text)
        .flatMap((code) => code.match(/(?<![\w./-])(?:[A-Z][a-z]+[A-Z]|[a-z]+[A-Z])\w*/g) ?? [])
        .filter((name) => !known.has(name))
        .map((name) => `${path}: ${name}`),
    );
  expect(unknown).toEqual([]);
});

it('names options that some command has', () => {
  const options = readFileSync(join(root, 'docs/reference/options.md'), 'utf8');
  const tools = readFileSync(join(root, 'tools/peer-llama/README.md'), 'utf8');
  // Of every command, of Node, and of other systems.
  const others = ['--help', '--help-all', '--expose-gc', '--disaggregation-mode'];
  // Of the table that compares options of other servers with ours.
  others.push('--max-model-len', '--kv-cache-memory-bytes', '--max-num-seqs', '--allowed-origins');
  others.push('--dtype', '--quantization', '--tensor-parallel-size');
  others.push('--chat-template-file', '--tool-call-parser', '--reasoning-parser', '--jinja');
  // Of vLLM and SGLang engines behind a fleet.
  others.push('--kv-events-config', '--enable-metrics', '--load-publish-endpoint');
  // Of `npm run explore`.
  others.push('--only', '--replay');
  // Of npm, podman, helm and systemctl.
  others.push('--omit', '--package-lock-only', '--read-only', '--tmpfs', '--time', '--set', '--now');
  const known = new Set([
    ...(options.match(/--[a-z][a-z-]+/g) ?? []),
    ...(tools.match(/--[a-z][a-z-]+/g) ?? []),
    ...others,
  ]);
  const unknown = pages
    .filter(({ path }) => path.startsWith('docs/') || path === 'README.md')
    .flatMap(({ path, text }) =>
      [...text.matchAll(/(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])/g)]
        .filter(([flag]) => !known.has(flag))
        .map(([flag]) => `${path}: ${flag}`),
    );
  expect(unknown).toEqual([]);
});

it('names metrics that a gateway has', () => {
  const known = readFileSync(join(root, 'docs/reference/metrics.md'), 'utf8');
  const unknown = pages.flatMap(({ path, text }) =>
    [...text.matchAll(/\bkvasir_\w+/g)]
      .filter(([name]) => !known.includes(name.replace(/_(count|sum|bucket)?$/, '')))
      .map(([name]) => `${path}: ${name}`),
  );
  expect(unknown).toEqual([]);
});
