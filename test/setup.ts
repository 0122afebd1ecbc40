// Runs before every test file: processes that the file leaves behind end with it. In CI, random cases are the same in
// every run; elsewhere
// each run draws its own and prints the seed of a failure.
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll } from 'vitest';
import { killLeftOver } from './children.ts';

afterAll(killLeftOver);

// Processes of tests share the token of their clusters here, outside the home of the user.
process.env.XDG_STATE_HOME = join(tmpdir(), 'kvasir-test-state');

// Lists in properties reach their `maxLength`; fast-check's default size stops at ten entries.
fc.configureGlobal({ ...fc.readConfigureGlobal(), defaultSizeToMaxWhenMaxSpecified: true });
// An exploration chooses the seed, so that its failures can be replayed.
const explored = process.env.KVASIR_PROPERTY_SEED;
if (explored !== undefined) fc.configureGlobal({ ...fc.readConfigureGlobal(), seed: Number(explored) });
else if (process.env.CI !== undefined) fc.configureGlobal({ ...fc.readConfigureGlobal(), seed: 20_260_101 });
