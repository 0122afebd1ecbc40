// Refusals under overload: the published effect of decode admission before prefill, in the setting of the experiment.
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const trace = join(root, '..', 'shared', 'traces', 'mooncake', 'conversation_trace.jsonl.gz');

async function simulate(admission: string) {
  const flags = [join(root, 'experiments', 'overload.yaml'), '--trace', trace, '--admission', admission, '--json'];
  const program = join(root, 'bundle', 'cli', 'main.js');
  const { stdout } = await promisify(execFile)(process.execPath, [program, 'simulate', ...flags]);
  const { requests, completed, refused, withinSlo, poolLoads } = JSON.parse(stdout.trim().split('\n').at(-1) ?? '');
  const late = (completed - withinSlo) / completed;
  return { refused: requests - completed, atDecode: refused.atDecode, requests, withinSlo, late, swing: poolLoads };
}

it.skipIf(!existsSync(trace))(
  'early refusal refuses fewer than refusal at each stage, and prediction swings half as much (needs ../shared/traces)',
  async () => {
    const [stage, early, predictive] = await Promise.all(['stage', 'early', 'predictive'].map(simulate));
    if (stage === undefined || early === undefined || predictive === undefined) throw new Error('a run is missing');
    expect(stage.refused / stage.requests).toBeGreaterThan(0.12);
    expect(stage.refused / stage.requests).toBeLessThan(0.25);
    expect(stage.atDecode).toBeGreaterThan(stage.refused / 3);
    expect(early.refused).toBeLessThanOrEqual(0.95 * stage.refused);
    expect(predictive.refused).toBeLessThanOrEqual(0.92 * stage.refused);
    for (const { withinSlo, late } of [early, predictive]) {
      expect(withinSlo).toBeGreaterThanOrEqual(stage.withinSlo);
      expect(late).toBeLessThanOrEqual(0.01);
    }
    expect(predictive.swing.differenceDeviation).toBeLessThanOrEqual(early.swing.differenceDeviation / 2);
  },
);
