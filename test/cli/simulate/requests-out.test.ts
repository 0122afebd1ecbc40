// `simulate --requests-out`: a record of each request, which agrees with the figures of the run.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { readOptions } from '../../../src/cli/options/options.ts';
import { completeReport, runSimulation, simulationSchema } from '../../../src/cli/simulate/simulated-run.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-requests-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function run(flags: Readonly<Record<string, string>>) {
  const options = readOptions(simulationSchema, { workload: 'real', requests: '80', seed: '3', ...flags });
  return completeReport(await runSimulation(options, false), options, 0);
}

const meanOf = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;

describe('--requests-out', () => {
  it('has the times of every request between prefill and decode instances, as JSON lines', async () => {
    const path = join(folder, 'requests.jsonl');
    const report = await run({ prefill: '2', decode: '2', rate: '4', requestsOut: path });
    const records = readFileSync(path, 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(new Set(records.map(({ index }) => index)).size).toBe(80);
    for (const name of ['ttftMs', 'e2eMs', 'queueMs'] as const)
      expect(meanOf(records.map((record) => record[name]))).toBeCloseTo(report[name].mean, 6);
    const gaps = records.filter(({ tpotMs }) => tpotMs !== undefined);
    expect(meanOf(gaps.map(({ tpotMs }) => tpotMs))).toBeCloseTo(report.tpotMs.mean, 2);
    for (const { instance, decodeInstance, attempts, outcome, queueMs, ttftMs, e2eMs } of records) {
      expect(instance).toMatch(/^prefill [01]$/);
      expect(decodeInstance).toMatch(/^decode [01]$/);
      expect({ attempts, outcome }).toEqual({ attempts: 1, outcome: 'completed' });
      expect(queueMs).toBeLessThan(ttftMs);
      expect(ttftMs).toBeLessThanOrEqual(e2eMs);
    }
    const sum = (name: string) => records.reduce((all, record) => all + record[name], 0);
    expect(sum('promptTokens') - sum('cachedTokens')).toBe(report.prefillTokens);
    expect(sum('hitBlocks')).toBeGreaterThan(0);
  });

  it('counts preemptions and names refusals, as CSV', async () => {
    const path = join(folder, 'requests.csv');
    const memory = { workload: 'plain', input: '2000..6000', output: '3000', mixed: '1', rate: '5', cacheBlocks: '60' };
    const slo = { ttftSlo: '20s', tbtSlo: '1s', admission: 'stage' };
    const report = await run({ ...memory, ...slo, requestsOut: path });
    const [header = '', ...rows] = readFileSync(path, 'utf8').trim().split('\n');
    const names = header.split(',');
    const column = (name: string) => rows.map((row) => row.split(',')[names.indexOf(name)] ?? '');
    expect(rows).toHaveLength(80);
    expect(column('outcome').filter((outcome) => outcome === 'completed')).toHaveLength(report.completed);
    expect(column('outcome').filter((outcome) => outcome === 'ttft')).toHaveLength(report.refused.byReason.ttft ?? 0);
    expect(report.completed).toBeLessThan(80);
    const preemptions = column('preemptions').reduce((sum, count) => sum + Number(count), 0);
    expect(preemptions).toBe(report.preemptions);
    expect(preemptions).toBeGreaterThan(0);
  });
});

it('the figures of each instance add up to those of the run', async () => {
  const { instances, decodeTokens, steps, settings } = await run({ mixed: '3' });
  expect(instances.map(({ name }) => name)).toEqual(['mixed 0', 'mixed 1', 'mixed 2']);
  const sum = (of: (work: (typeof instances)[number]) => number) => instances.reduce((all, work) => all + of(work), 0);
  expect(sum(({ generatedTokens }) => generatedTokens)).toBe(decodeTokens);
  expect(sum((work) => work.steps)).toBe(steps);
  expect(settings).toMatchObject({ workload: 'real', requests: 80, seed: 3, mixed: 3 });
});
