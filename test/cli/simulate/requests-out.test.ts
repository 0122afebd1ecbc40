// `simulate --requests-out`: a record of each request, which agrees with the figures of the run.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet';
import { afterAll, describe, expect, it } from 'vitest';
import { readOptions, toFlag } from '../../../src/cli/options/options.ts';
import { ParquetFile } from '../../../src/cli/simulate/outputs/parquet-file.ts';
import { writeFully } from '../../../src/cli/simulate/outputs/requests-file.ts';
import { completeReport, runSimulation, simulationSchema } from '../../../src/cli/simulate/simulated-run.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-requests-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function run(flags: Readonly<Record<string, string>>) {
  const options = readOptions(simulationSchema, { workload: 'real', requests: '80', seed: '3', ...flags });
  return completeReport(await runSimulation(options, false), options, 0);
}

/** A row as written: 64-bit integers as numbers, and no field where it has no value. */
function withNumbers(row: Record<string, unknown>) {
  const fields = Object.entries(row).filter(([, value]) => value !== null);
  return Object.fromEntries(fields.map(([name, value]) => [name, typeof value === 'bigint' ? Number(value) : value]));
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
    const turns = records.map(({ session, turn }) => `${session}.${turn}`);
    expect(new Set(turns).size).toBe(80);
    for (const { session, turn } of records) expect(turn === 0 || turns.includes(`${session}.${turn - 1}`)).toBe(true);
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

describe('a file of requests', () => {
  it('has the records as Parquet, with the rows of JSON lines', async () => {
    const [path, lines] = [join(folder, 'requests.parquet'), join(folder, 'same.jsonl')];
    await run({ mixed: '2', requestsOut: path });
    await run({ mixed: '2', requestsOut: lines });
    const read = await parquetReadObjects({ file: await asyncBufferFromFile(path) });
    const expected = readFileSync(lines, 'utf8').trim().split('\n');
    expect(read.map(withNumbers)).toEqual(expected.map((line) => JSON.parse(line)));
  });

  it('has columns of each type, with and without values, in several row groups', async () => {
    const path = join(folder, 'types.parquet');
    const parts: Uint8Array[] = [];
    const types = { n: 'INT64', ms: 'DOUBLE', name: 'STRING', is: 'BOOLEAN' } as const;
    const columns = Object.entries(types).map(([name, type]) => ({ name, type }));
    const file = new ParquetFile(columns, (bytes) => parts.push(bytes.slice()));
    const rows = Array.from({ length: 40_000 }, (_, i) => ({
      n: i % 3 === 0 ? undefined : 2 ** 40 + i,
      ms: i % 5 === 0 ? undefined : i / 4,
      name: i % 7 === 0 ? undefined : `é${i % 11}`,
      is: i % 2 === 0 ? undefined : i % 4 === 1,
    }));
    for (const { n, ms, name, is } of rows) file.add([n, ms, name, is]);
    file.close();
    writeFileSync(path, Buffer.concat(parts));
    const read = await parquetReadObjects({ file: await asyncBufferFromFile(path) });
    expect(read.map(withNumbers)).toEqual(rows);
  });

  it('is complete where the system accepts only parts of what is written', () => {
    const written: number[] = [];
    let calls = 0;
    writeFully(1, Uint8Array.of(1, 2, 3, 4, 5, 6, 7), (_, bytes, from) => {
      const part = bytes.subarray(from, from + (calls++ % 3));
      written.push(...part);
      return part.length;
    });
    expect(written).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });

  it.each(['report', 'loadPlot', 'requestsOut', 'timeline'])(
    'that cannot be written is refused first: %s',
    async (name) => {
      const path = join(folder, 'missing', 'file');
      await expect(run({ [name]: path })).rejects.toThrow(new RegExp(`^Cannot use --${toFlag(name)} .*: ENOENT`));
    },
  );
});

it('the figures of each instance add up to those of the run', async () => {
  const { instances, decodeTokens, steps, settings } = await run({ mixed: '3' });
  expect(instances.map(({ name }) => name)).toEqual(['mixed 0', 'mixed 1', 'mixed 2']);
  const sum = (of: (work: (typeof instances)[number]) => number) => instances.reduce((all, work) => all + of(work), 0);
  expect(sum(({ generatedTokens }) => generatedTokens)).toBe(decodeTokens);
  expect(sum((work) => work.steps)).toBe(steps);
  expect(settings).toMatchObject({ workload: 'real', requests: 80, seed: 3, mixed: 3 });
});
