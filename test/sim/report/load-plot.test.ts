// The plot of the pools' loads over time.
import { describe, expect, it } from 'vitest';
import { Simulation } from '../../../src/sim/engine/simulation.ts';
import { loadPlot } from '../../../src/sim/report/load-plot.ts';
import { LoadRecorder } from '../../../src/sim/report/load-recorder.ts';
import { cluster, config, requestOf } from '../small-cluster.ts';

function recorded(slo: { readonly ttft: { readonly us: number }; readonly tbt: { readonly us: number } } | undefined) {
  const admission = { kind: 'none', slo, decodeUs: 1e6 } as const;
  const simulation = new Simulation({ ...config, instances: cluster({ prefill: 1, decode: 1 }), admission });
  const recorder = new LoadRecorder(simulation);
  for (let i = 0; i < 30; i++) {
    recorder.advance(i * 100_000);
    simulation.arrive(requestOf(i, i * 100_000, 100, 40));
  }
  simulation.finish();
  recorder.close();
  return recorder.load();
}

describe('the plot of the loads', () => {
  it('has a point of each pool for each sample, inside its frame', () => {
    const load = recorded({ ttft: { us: 60_000 }, tbt: { us: 9_000 } });
    const svg = loadPlot(load, 'early <1>') ?? '';
    const curves = [...svg.matchAll(/points="([^"]*)"/g)].map(([, points]) => (points ?? '').split(' '));
    expect(curves.map((points) => points.length)).toEqual([load.seconds.length, load.seconds.length]);
    for (const point of curves.flat()) {
      const [x, y] = point.split(',').map(Number);
      expect(x).toBeGreaterThanOrEqual(48);
      expect(x).toBeLessThanOrEqual(844);
      expect(y).toBeGreaterThanOrEqual(36);
      expect(y).toBeLessThanOrEqual(224);
    }
    expect(new Set(curves[1]).size).toBeGreaterThan(3);
    expect(svg).toContain('early &lt;1>');
  });

  it('is undefined without an SLO', () => {
    expect(loadPlot(recorded(undefined), '')).toBeUndefined();
  });
});
