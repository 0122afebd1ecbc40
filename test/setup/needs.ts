// What a test does when the machine lacks something it needs: skip at a desk, fail in CI, where a skip would hide the loss.
import { test } from 'vitest';

/**
 * `test` itself when `present`; otherwise a test that is skipped, or in CI fails, naming what is missing.
 * @example requireOrSkip('a C++ compiler', hasCompiler)('compiles', () => {})
 */
export function requireOrSkip(what: string, present: boolean) {
  return (name: string, body: () => void | Promise<void>): void => {
    if (present) test(name, body);
    else if (process.env.CI === undefined) test.skip(`${name} (needs ${what})`, body);
    else {
      test(name, () => {
        throw new Error(`Cannot run this test: ${what} is missing, and CI must have it`);
      });
    }
  };
}
