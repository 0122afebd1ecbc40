#!/usr/bin/env node
// The `kvasir` command: builds what is missing (progress on stderr, since stdout belongs to the command), then runs it.
import { realpathSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { needsKernels } from './native-choice.mjs';
import { root } from './root.mjs';
import { prepare } from './steps.mjs';

/** Runs `kvasir ...args`; `report` receives one line for each preparation step. */
export async function runKvasir(args, report) {
  try {
    await prepare(report, needsKernels(args), false);
  } catch (error) {
    console.error(error.message);
    process.exitCode = 1;
    return;
  }
  const main = join(root, 'bundle', 'cli', 'main.js');
  process.argv = [process.execPath, main, ...args];
  await import(pathToFileURL(main).href);
}

if (realpathSync(process.argv[1] ?? '') === fileURLToPath(import.meta.url)) {
  await runKvasir(process.argv.slice(2), console.error);
}
