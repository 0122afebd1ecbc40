// CI has every tool that tests elsewhere may skip for: a skip there would pass unnoticed.
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

/**
 * Legitimately missing in CI: the right to mount and to create network namespaces, CPU instructions, a user other than
 * root.
 */
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
