// `npm run sanitize [-- FILTER...]`: the contract and e2e suites, or the tests that match, with an addon under the address and
// undefined-behaviour sanitizers, which ends the process at its first error. It takes an hour or more, and is run by hand.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { addonOf, buildNative, sanitizedWhole } from './build-native.mjs';
import { sanitizerEnvironment } from './fuzz.mjs';
import { root } from './root.mjs';
import { prepare } from './steps.mjs';

try {
  await prepare(console.log, false);
  await buildNative(console.log, () => {}, sanitizedWhole);
  const env = sanitizerEnvironment(addonOf(sanitizedWhole));
  if (env === undefined) throw new Error('the compiler has no runtime of the sanitizers that node can load');
  const filters = process.argv.length > 2 ? process.argv.slice(2) : ['test/contract', 'test/e2e'];
  const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
  // The mode gives tests more time. Flags would not: vitest passes no time of hooks to the projects of its configuration.
  const args = [vitest, 'run', '--maxWorkers=1', '--mode', 'sanitized', ...filters];
  const { status } = spawnSync(process.execPath, args, { cwd: root, env, stdio: 'inherit' });
  process.exitCode = status ?? 1;
} catch (error) {
  console.error(`Cannot run the tests under sanitizers: ${error.message}`);
  process.exitCode = 1;
}
