// The bundle when several processes write it, and when one of them ended early.
import { mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scriptTree } from './script-tree.ts';

it('two bundlings at the same moment leave one bundle, and remove what an ended process left', () => {
  const tree = scriptTree();
  for (const entry of [
    'cli/main',
    'cli/bench/fleet/peer',
    'cli/serve/instance-worker',
    'cli/serve/model/tokenizer-worker',
    'cli/serve/model/grammar-worker',
    'cli/serve/host/heartbeat-worker',
    'cli/simulate/sweep/simulation-worker',
    'library/index',
    'library/ai-sdk',
  ])
    tree.write(`dist/${entry}.js`, 'export {};\n');
  // No process has so high a number; the one of this test runs.
  const [ended, running] = ['bundle.4999999-1.tmp', `bundle.${process.pid}.tmp`];
  for (const folder of [ended, running]) mkdirSync(join(tree.root, folder));
  tree.write(
    'scripts/twice.mjs',
    `import { ensureBundled } from './bundle.mjs';
     await Promise.all([ensureBundled(), ensureBundled()]);
     await ensureBundled();\n`,
  );
  expect(tree.run('twice.mjs')).toEqual({ status: 0, output: '' });
  expect(readdirSync(tree.root).filter((name) => name.startsWith('bundle'))).toEqual(['bundle', running]);
  expect(readdirSync(join(tree.root, 'bundle'))).toContain('stamp.json');
});
