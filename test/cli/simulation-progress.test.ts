// Progress of a simulated run on a terminal and elsewhere.
import { describe, expect, it } from 'vitest';
import { SimulationProgress } from '../../src/cli/simulate/simulation-progress.ts';

const run = { nowUs: 3_725e6, unfinished: 12, outcome: { requests: 1234 } };

function shown(isTTY: boolean, times: readonly (readonly [number, number])[]): readonly string[] {
  const written: string[] = [];
  let nowMs = 0;
  const output = { isTTY, columns: 200, write: (text: string) => written.push(text) };
  const progress = new SimulationProgress(output, () => nowMs);
  for (const [ms, share] of times) {
    nowMs = ms;
    progress.show(share, run);
  }
  progress.close();
  return written;
}

describe('progress', () => {
  it('prints nothing for a short run', () => {
    expect(shown(true, [[900, 0.9]])).toEqual([]);
  });

  it('updates one line on a terminal a few times a second, and clears it', () => {
    const line = 'Simulating: 25 %, 1 h 2 min simulated, 1,234 requests ended, 12 under way, 30 s left';
    expect(
      shown(true, [
        [10_000, 0.25],
        [10_100, 0.26],
      ]),
    ).toEqual([`\r${line}\x1b[K`, '\r\x1b[K']);
  });

  it('prints occasional lines elsewhere, also after the last arrival', () => {
    const lines = shown(false, [
      [5_000, 0.1],
      [10_000, 0.5],
      [15_000, 0.7],
      [90_000, 1],
    ]);
    expect(lines).toHaveLength(2);
    expect(lines[1]).toBe(
      'Simulating: all requests arrived, 1 h 2 min simulated, 1,234 requests ended, 12 under way\n',
    );
  });
});
