// The search for the highest rate, against a cluster with a known limit.
import { describe, expect, it } from 'vitest';
import { readOptions } from '../../../src/cli/options/options.ts';
import { runAtHighestRate } from '../../../src/cli/simulate/find-rate.ts';
import { withoutOutputs } from '../../../src/cli/simulate/outputs/run-outputs.ts';
import { runSimulation, simulationSchema } from '../../../src/cli/simulate/simulated-run.ts';
import { findRate } from '../../../src/cli/simulate/sweep/rate-search.ts';

describe('the highest rate', () => {
  it.each([
    [1, 0.37],
    [1, 1],
    [1, 900],
    [40, 39.9],
  ])('from %d is found within a hundredth of %d', async (first, limit) => {
    let tried = 0;
    const found = await findRate(first, async (rate) => {
      tried++;
      return rate <= limit;
    });
    expect(found.rate).toBeLessThanOrEqual(limit);
    expect(found.above).toBeGreaterThan(limit);
    expect(found.above / found.rate).toBeLessThanOrEqual(1.01);
    expect(found.tried).toBe(tried);
    expect(tried).toBeLessThan(24);
  });

  it('is an error if there is none or no upper limit', async () => {
    await expect(findRate(1, async () => false)).rejects.toThrow('Cannot find a rate: no rate from 1 to');
    await expect(findRate(1, async () => true)).rejects.toThrow('Cannot find a rate: every rate from 1 to');
  });

  it('of a workload meets the share, and a slightly higher rate does not', async () => {
    const flags = {
      workload: 'arxiv',
      requests: '60',
      mixed: '2',
      ttftSlo: '5s',
      tbtSlo: '100ms',
      seed: '4',
      findRate: '0.9',
    };
    const options = readOptions(simulationSchema, flags);
    const { found, parameter, simulation } = await runAtHighestRate(options, 0.9);
    const { withinSlo, requests } = simulation.outcome;
    expect(parameter).toBe('rate');
    expect(withinSlo / requests).toBeGreaterThanOrEqual(0.9);
    const { outcome } = await runSimulation({ ...options, rate: found.above });
    expect(outcome.withinSlo / outcome.requests).toBeLessThan(0.9);
  });

  it('is searched for by trials that write no file: only the last run does', () => {
    const files = { report: 'a.html', loadPlot: 'b.svg', timeline: 'c.json' };
    const options = readOptions(simulationSchema, { workload: 'arxiv', ...files });
    const trial = withoutOutputs(options);
    expect(options).toMatchObject(files);
    for (const [name, value] of Object.entries(trial)) expect(Object.values(files), name).not.toContain(value);
    expect({ ...trial, ...files }).toEqual(options);
  });

  it('is searched for with the same requests at every rate', async () => {
    const flags = { workload: 'real', requests: '60', mixed: '2', ttftSlo: '5s', tbtSlo: '100ms' };
    const options = readOptions(simulationSchema, flags);
    const { simulation, curve, found } = await runAtHighestRate(options, 0.9);
    const { outcome } = await runSimulation({ ...options, rate: 1 }, false);
    expect(found.rate).not.toBe(1);
    expect(simulation.outcome.promptTokens).toBe(outcome.promptTokens);
    expect(curve).toHaveLength(found.tried);
    expect(curve.filter(({ withinSlo }) => withinSlo >= 0.9).at(-1)).toMatchObject({ rate: found.rate });
  });

  it('of several seeds is the mean of their rates, with its 95 % interval', async () => {
    const flags = { workload: 'arxiv', requests: '20', mixed: '1', ttftSlo: '5s', tbtSlo: '100ms', seeds: '2' };
    const { found, several } = await runAtHighestRate(readOptions(simulationSchema, flags), 0.9);
    const { rates = [], interval = [] } = several ?? {};
    expect(rates).toHaveLength(2);
    expect(found.rate).toBeCloseTo((rates[0] + rates[1]) / 2, 9);
    // Student's t with one degree of freedom.
    expect(interval[1] - interval[0]).toBeCloseTo(12.71 * Math.abs(rates[0] - rates[1]), 6);
    const one = await runAtHighestRate(readOptions(simulationSchema, { ...flags, seeds: '1' }), 0.9);
    expect([one.found.rate, one.several]).toEqual([rates[0], undefined]);
  });

  it('requires an SLO', async () => {
    const options = readOptions(simulationSchema, { workload: 'arxiv' });
    await expect(runAtHighestRate(options, 0.9)).rejects.toThrow('Cannot find a rate without --ttft-slo');
  });
});
