// Runs before every test file: in CI random cases are the same in every run; elsewhere each run draws its own, and prints the seed of a failure.
import fc from 'fast-check';

if (process.env.CI !== undefined) fc.configureGlobal({ ...fc.readConfigureGlobal(), seed: 20_260_101 });
