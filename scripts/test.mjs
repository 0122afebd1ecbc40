// `npm test`: prepares, runs the tests, and closes with `N passed, N failed`; arguments go to vitest.
// Before them, `--fast` leaves slow kinds of tests out, and `--fuzz SECONDS` also runs the fuzz target under sanitizers.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { compileFuzzTarget, fuzz } from './fuzz.mjs';
import { root } from './root.mjs';
import { prepare } from './steps.mjs';

/** Counts of vitest's JSON report. A file that could not run, and a run without a report, each count as one failure. */
function countsOf(reportPath, exitCode) {
  if (!existsSync(reportPath)) return { passed: 0, failed: 1, skipped: 0 };
  const report = JSON.parse(readFileSync(reportPath, 'utf8'));
  const brokenFiles = report.testResults.filter(({ status, assertionResults }) => {
    return status === 'failed' && !assertionResults.some((test) => test.status === 'failed');
  });
  const failed = report.numFailedTests + brokenFiles.length;
  return {
    passed: report.numPassedTests,
    // An error outside every test (an unhandled rejection) fails the run although each test passed.
    failed: failed === 0 && exitCode !== 0 ? 1 : failed,
    skipped: report.numPendingTests + report.numTodoTests,
  };
}

const none = { passed: 0, failed: 0, skipped: 0 };

function close({ passed, failed, skipped }) {
  console.log(`${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`);
  // A run without tests fails.
  process.exitCode = failed === 0 && passed > 0 ? 0 : 1;
}

/** The seconds to fuzz, and the arguments for vitest. */
function argumentsOf([flag, ...rest]) {
  if (flag === '--fast') return { fuzzSeconds: 0, rest: ['--mode', 'fast', ...rest] };
  if (flag === '--fuzz') return { fuzzSeconds: Number(rest[0]), rest: rest.slice(1) };
  return { fuzzSeconds: 0, rest: process.argv.slice(2) };
}

/** Runs node with `args`. Resolves with its exit code; null when a signal ended it. */
function run(args) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
    child.on('error', reject).on('close', resolve);
  });
}

try {
  const { fuzzSeconds, rest } = argumentsOf(process.argv.slice(2));
  await prepare(console.log);
  console.log('running the tests (vitest)');
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-test-'));
  const reportPath = join(folder, 'report.json');
  const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
  const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${reportPath}`];
  const args = [vitest, 'run', ...reporters, ...rest];
  // Tests of processes spend time in time-outs: the idle cores compile the fuzz target meanwhile.
  const compiled = fuzzSeconds > 0 ? compileFuzzTarget() : undefined;
  const status = await run(args);
  const counts = countsOf(reportPath, status ?? 1);
  rmSync(folder, { recursive: true, force: true });
  await compiled;
  const found = fuzzSeconds > 0 ? await fuzz({ seconds: fuzzSeconds }, console.log) : none;
  close({
    passed: counts.passed + found.passed,
    failed: counts.failed + found.failed,
    skipped: counts.skipped + found.skipped,
  });
} catch (error) {
  console.error(error.message);
  close({ passed: 0, failed: 1, skipped: 0 });
}
