// The fuzz target as a program: runs cases up to a number or a time limit. scripts/fuzz.mjs starts and supervises it.
import { openSync, writeSync } from 'node:fs';
import { parseArgs } from 'node:util';
import type { Fault, FuzzTarget } from './target.ts';

const { values } = parseArgs({
  options: {
    /** `models`, `wire` or `http`. */
    target: { type: 'string', default: 'models' },
    seed: { type: 'string', default: '1' },
    from: { type: 'string', default: '0' },
    cases: { type: 'string', default: '10000' },
    seconds: { type: 'string', default: '3600' },
    /** File that receives the number of the running case, so that a crash can be traced to its case. */
    progress: { type: 'string' },
  },
});

const seed = Number(values.seed);
/** Each loads only what it runs. */
const targets: Readonly<Record<string, () => Promise<FuzzTarget>>> = {
  models: async () => {
    const { createNativeBackend } = await import('../../src/kernel/native/native.ts');
    const { CaseRunner } = await import('./run-cases.ts');
    return new CaseRunner(seed, createNativeBackend({ threads: 2 }));
  },
  wire: async () => new (await import('./wire-cases.ts')).WireCases(seed),
  http: async () => new (await import('./http-cases.ts')).HttpCases(seed),
};
const runner = await targets[values.target]?.();
if (runner === undefined) throw new Error(`Cannot fuzz ${values.target}: it is no target`);
const endMs = performance.now() + 1000 * Number(values.seconds);
const progress = values.progress === undefined ? undefined : openSync(values.progress, 'r+');
const last = Number(values.from) + Number(values.cases);

function report(fault: Fault): void {
  console.log(`FAULT ${JSON.stringify({ ...fault, seed })}`);
}

(await runner.checkSeeds()).forEach(report);
let index = Number(values.from);
for (; index < last && performance.now() < endMs; index++) {
  if (progress !== undefined) writeSync(progress, String(index).padEnd(12), 0);
  const fault = await runner.run(index);
  if (fault !== undefined) report(fault);
}
runner.close();
console.log(`DONE ${JSON.stringify({ cases: index - Number(values.from), ...runner.outcomes })}`);
process.exit(0);
