// Runs before every test file: what processes it leaves behind end with it. In CI random cases are the same in every run; elsewhere each run draws its own, and prints the seed of a failure.
import fc from 'fast-check';
import { afterAll } from 'vitest';
import { killLeftOver } from './children.ts';

afterAll(killLeftOver);

// A list that may have 120 entries is to have them: by itself it would have ten at most.
fc.configureGlobal({ ...fc.readConfigureGlobal(), defaultSizeToMaxWhenMaxSpecified: true });
if (process.env.CI !== undefined) fc.configureGlobal({ ...fc.readConfigureGlobal(), seed: 20_260_101 });
