// The fuzz target as a program: runs cases up to a number or a time limit. scripts/fuzz.mjs starts and supervises it.
import { openSync, writeSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { createNativeBackend } from '../../src/kernel/native/native.ts';
import { CaseRunner, type Fault } from './run-cases.ts';

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: '1' },
    from: { type: 'string', default: '0' },
    cases: { type: 'string', default: '10000' },
    seconds: { type: 'string', default: '3600' },
    /** File that receives the number of the running case, so that a crash can be traced to its case. */
    progress: { type: 'string' },
  },
});

const runner = new CaseRunner(Number(values.seed), createNativeBackend({ threads: 2 }));
const endMs = performance.now() + 1000 * Number(values.seconds);
const progress = values.progress === undefined ? undefined : openSync(values.progress, 'r+');
const last = Number(values.from) + Number(values.cases);

function report(fault: Fault): void {
  console.log(`FAULT ${JSON.stringify({ ...fault, seed: Number(values.seed) })}`);
}

runner.checkSeeds().forEach(report);
let index = Number(values.from);
for (; index < last && performance.now() < endMs; index++) {
  if (progress !== undefined) writeSync(progress, String(index).padEnd(12), 0);
  const fault = runner.run(index);
  if (fault !== undefined) report(fault);
}
runner.close();
console.log(`DONE ${JSON.stringify({ cases: index - Number(values.from), ...runner.outcomes })}`);
process.exit(0);
