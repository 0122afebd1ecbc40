// CI has all that tests elsewhere may do without: what they skip there for want of a tool would pass unseen.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { findCompiler, objectsOf, optimised } from '../scripts/build-native.mjs';
import { root } from '../scripts/root.mjs';
import { findNative } from '../src/kernel/native/native.ts';
import { inCi } from './ci.ts';
import { natsInstalled } from './runtime/bus/nats-server.ts';

const shared = (path: string) => existsSync(join(root, '..', 'shared', path));
const objects = objectsOf(optimised);

/** What is legitimately missing in a CI run is no tool: the right to mount and to make network namespaces, instructions, another user than root. */
const needs: Readonly<Record<string, () => boolean>> = {
  'the native kernels': () => findNative().kind === 'loaded',
  'the objects that they are linked from': () => existsSync(objects) && readdirSync(objects).length > 0,
  'a C++ compiler': () => findCompiler() !== undefined,
  'nm, on Linux': () => process.platform !== 'linux' || spawnSync('nm', ['--version']).status === 0,
  '/dev/full, on Linux': () => process.platform !== 'linux' || existsSync('/dev/full'),
  'nats-server': () => natsInstalled,
  'trained and random models': () =>
    ['kvasir-tiny', 'SmolLM2-135M-Instruct', 'random'].every((name) => shared(`models/${name}`)),
  'vocabularies and quantised tensors': () => ['vocabs', 'quants'].every((name) => shared(`models/${name}`)),
  'production traces and tables': () => ['aic', 'azure', 'mooncake', 'vidur'].every((name) => shared(`traces/${name}`)),
};

test.runIf(inCi).each(Object.keys(needs))('CI has %s', (name) => {
  expect(needs[name]?.()).toBe(true);
});
