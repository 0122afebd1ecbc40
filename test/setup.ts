// Runs before every test file: processes that the file leaves behind end with it. In CI, random cases are the same in
// every run; elsewhere
// each run draws its own and prints the seed of a failure.
import fc from 'fast-check';
import { afterAll } from 'vitest';
import { killLeftOver } from './children.ts';

afterAll(killLeftOver);

// Lists in properties reach their `maxLength`; fast-check's default size stops at ten entries.
fc.configureGlobal({ ...fc.readConfigureGlobal(), defaultSizeToMaxWhenMaxSpecified: true });
if (process.env.CI !== undefined) fc.configureGlobal({ ...fc.readConfigureGlobal(), seed: 20_260_101 });
