// `npm run ok`: the whole gate. Format, lint, projects, types, dead code, package, tests; every check runs, all must pass.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './root.mjs';
import { prepare } from './steps.mjs';
import { expectedTsconfigs } from './write-tsconfigs.mjs';

const tool = (path) => join(root, 'node_modules', path);

const checks = [
  ['format and lint', [tool('@biomejs/biome/bin/biome'), 'check', '--error-on-warnings', '.']],
  ['types', [tool('typescript/bin/tsc'), '-b']],
  ['types of examples', [tool('typescript/bin/tsc'), '-p', 'examples']],
  ['dead code', [tool('knip/bin/knip.js')]],
  ['package', [tool('publint/src/cli.js'), '--strict']],
  ['tests', [join(root, 'scripts', 'test.mjs')]],
];

/** True if the TypeScript projects agree with the table of rooms: a room without a project would not be checked. */
function projectsAreCurrent() {
  const stale = [...expectedTsconfigs(root)].filter(([path, text]) => {
    const full = join(root, path);
    return !existsSync(full) || readFileSync(full, 'utf8') !== text;
  });
  for (const [path] of stale)
    console.error(`${path} differs from the table of rooms: run node scripts/write-tsconfigs.mjs`);
  return stale.length === 0;
}

try {
  await prepare(console.log);
  const failed = projectsAreCurrent() ? [] : ['projects'];
  for (const [name, args] of checks) {
    console.log(`\n== ${name}`);
    const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit' });
    if (status !== 0) failed.push(name);
  }
  console.log(failed.length === 0 ? '\nok' : `\nnot ok: ${failed.join(', ')}`);
  process.exitCode = failed.length === 0 ? 0 : 1;
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
