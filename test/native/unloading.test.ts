// The addon stays mapped after the last thread that loaded it ends, since its pool threads still wait in its code.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const addon = join(root, 'build', 'kvasir.node');

const program = `
  const { Worker } = require('node:worker_threads');
  const { readFileSync } = require('node:fs');
  const worker = new Worker(
    "const addon = require(process.argv[2]); addon.createBackend(addon.detectIsa(), 2)",
    { eval: true, argv: [process.argv[1]] },
  );
  worker.on('exit', () => console.log(readFileSync('/proc/self/maps', 'utf8').includes(process.argv[1])));
`;

it.skipIf(process.platform !== 'linux' || !existsSync(addon))(
  'stays mapped after its thread ended (needs Linux and the compiled addon)',
  () => {
    const { status, stdout, stderr } = spawnSync(process.execPath, ['-e', program, addon], { encoding: 'utf8' });
    expect([status, stdout.trim(), stderr]).toEqual([0, 'true', '']);
  },
);
