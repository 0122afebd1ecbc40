// `npm test`: prepares, runs the tests, and closes with `N passed, N failed`; arguments go to vitest.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { root } from './root.mjs';
import { prepare } from './steps.mjs';

/** Counts of vitest's JSON report; a file that could not be run, and a run without a report, each count as one failure. */
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

function close({ passed, failed, skipped }) {
  console.log(`${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`);
  // A run without a test shows nothing, so it is no success.
  process.exitCode = failed === 0 && passed > 0 ? 0 : 1;
}

try {
  await prepare(console.log);
  console.log('running the tests (vitest)');
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-test-'));
  const reportPath = join(folder, 'report.json');
  const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
  const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${reportPath}`];
  const args = [vitest, 'run', ...reporters, ...process.argv.slice(2)];
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
  const counts = countsOf(reportPath, status ?? 1);
  rmSync(folder, { recursive: true, force: true });
  close(counts);
} catch (error) {
  console.error(error.message);
  close({ passed: 0, failed: 1, skipped: 0 });
}
