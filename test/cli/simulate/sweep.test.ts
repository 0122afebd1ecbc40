// Sweeps: the points of a file, their rows, errors, and the continuation of an interrupted sweep; and searches that run ahead.
import { appendFileSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { reportOfRun } from '../../../src/cli/simulate/simulated-run.ts';
import { figureTableOf, markdownTable, withTable } from '../../../src/cli/simulate/sweep/figure-table.ts';
import { findRate } from '../../../src/cli/simulate/sweep/rate-search.ts';
import { runSweep, SweepJournal, SweepProgress } from '../../../src/cli/simulate/sweep/run-sweep.ts';
import { searchAhead } from '../../../src/cli/simulate/sweep/search-ahead.ts';
import { simulate, sweep as sweepOver } from '../../../src/cli/simulate/sweep/sim-api.ts';
import { SimulationThreads } from '../../../src/cli/simulate/sweep/simulation-threads.ts';
import { sweepOf } from '../../../src/cli/simulate/sweep/sweep-file.ts';
import { sweepPage } from '../../../src/cli/simulate/sweep/sweep-page.ts';
import { csvOf, estimateOf, estimatesOf, figureOf, jsonLinesOf } from '../../../src/cli/simulate/sweep/sweep-rows.ts';
import { readYaml } from '../../../src/cli/yaml-file.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-sweep-'));
afterAll(() => rmSync(folder, { recursive: true }));

const base = { workload: 'plain', requests: 5, 'ttft-slo': '2s', 'tbt-slo': '100ms', seed: 3 };

describe('the points of a sweep', () => {
  it('combine all values of the grid, the last entry first, with the seeds of a point one after another', () => {
    const cluster = [
      { name: 'coupled', mixed: 2 },
      { name: 'split', prefill: 1, decode: 1 },
    ];
    const { columns, points } = sweepOf({ base, grid: { cluster, rate: [1, 2] }, seeds: 2 }, 'a.yaml');
    expect(columns).toEqual(['cluster', 'rate']);
    expect(points.map(({ index, seed, settings }) => [index, seed, ...Object.values(settings)])).toEqual([
      [0, 3, 'coupled', '1'],
      [0, 4, 'coupled', '1'],
      [1, 3, 'coupled', '2'],
      [1, 4, 'coupled', '2'],
      [2, 3, 'split', '1'],
      [2, 4, 'split', '1'],
      [3, 3, 'split', '2'],
      [3, 4, 'split', '2'],
    ]);
    expect(points[6].options).toMatchObject({ prefill: 1, decode: 1, rate: 2, seed: 3, ttftSlo: { us: 2_000_000 } });
  });

  it('have the flags of a choice beside another one, which replace those of both', () => {
    const size = [
      { name: 'small', mixed: 1 },
      { name: 'large', mixed: 4 },
    ];
    const system = [{ name: 'own' }, { name: 'joined', tp: 4, by: { large: { mixed: 2, tp: 2 } } }];
    const { points } = sweepOf({ base: { ...base, hardware: 'h100x8' }, grid: { size, system } }, 'a.yaml');
    expect(points.map(({ options: { mixed, tp } }) => [mixed, tp])).toEqual([
      [1, undefined],
      [1, 4],
      [4, undefined],
      [2, 2],
    ]);
  });

  it.each([
    [{ grid: { rate: 3 } }, 'Cannot read a.yaml: grid.rate'],
    [{ base: { nonsense: 3 } }, "unknown option 'nonsense'"],
    [{ base, grid: { rate: [1, -1] } }, 'Cannot use --rate -1'],
    [{ base: { ...base, report: 'a.html' } }, 'Cannot use report in a.yaml: each run would write the same file'],
    [{ grids: {} }, 'Unrecognized key'],
    [{ base, grid: { rate: [1], size: [{ name: 'a', by: 3 }] } }, 'Cannot read a.yaml: grid.size.a.by: '],
    [{ base, grid: { rate: [1], size: [{ name: 'a', by: { 1: 3 } }] } }, 'Cannot read a.yaml: grid.size.a.by.1: '],
    [
      { base, grid: { rate: [1], size: [{ name: 'a', by: { 2: { tp: 2 } } }, 2] } },
      "Cannot read a.yaml: grid.size.a.by: no other entry of the grid has a choice '2'",
    ],
  ])('of %j are refused', (content, message) => {
    expect(() => sweepOf(content, 'a.yaml')).toThrow(message);
  });
});

describe('a sweep', () => {
  const sweep = sweepOf({ base, grid: { rate: [1, 4] }, seeds: 2 }, 'a.yaml');

  it('has the figures of single runs, in the order of its points', async () => {
    const { results } = await runSweep(sweep, { jobs: 1 });
    const { wallSeconds: _, ...alone } = await reportOfRun(sweep.points[2].options);
    expect(results[2]).toMatchObject({ report: alone });
    const [header, ...rows] = csvOf(sweep, results).trimEnd().split('\n');
    expect(header.split(',').slice(0, 4)).toEqual(['rate', 'seed', 'requests', 'completed']);
    expect(rows.map((row) => row.split(',').slice(0, 4).join())).toEqual(['1,3,5,5', '1,4,5,5', '4,3,5,5', '4,4,5,5']);
    expect(JSON.parse(jsonLinesOf(sweep, results).split('\n')[2])).toMatchObject({ settings: { rate: '4' }, seed: 3 });
    const page = sweepPage(sweep, results, 'Sweep of <a>');
    expect(page).toContain('<title>Sweep of &lt;a></title>');
    expect(page).toContain('4 runs, 2 of each point');
    expect(page.match(/<circle/g)).toHaveLength(2 * 8);
    expect(page.match(/<polyline/g)).toHaveLength(6 + 2);
    expect(page).toContain('Goodput');
    expect(page).not.toMatch(/NaN|undefined/);
    const [first] = estimatesOf(sweep.points, results, 'simulatedSeconds');
    expect(first?.error).toBeGreaterThan(0);
  });

  it('has an error as the result of a run that fails, and finishes the others', async () => {
    const failing = sweepOf({ base, grid: { trace: ['missing.jsonl'] } }, 'a.yaml');
    const both = { columns: ['rate'], points: [sweep.points[0], ...failing.points] };
    const { results } = await runSweep(both, { jobs: 1 });
    expect(results).toMatchObject([{ report: { requests: 5 } }, { error: expect.stringContaining('Cannot use') }]);
    expect(csvOf(both, results)).toMatch(/,,"?Cannot use [^\n]*\n$/);
    expect(estimatesOf(both.points.slice(1), results.slice(1), 'requests')).toEqual([undefined]);
  });

  it('counts failed requests apart from refused ones', async () => {
    const [point] = sweep.points;
    const report = await reportOfRun(point.options);
    const refused = { atPrefill: 4, atDecode: 2, byReason: { ttft: 3, memory: 2, failed: 1 } };
    const figuresOf = (own: typeof report) =>
      (['requests', 'completed', 'refused', 'failed'] as const).map((name) => figureOf(own, name));
    expect(figuresOf({ ...report, requests: 11, refused })).toEqual([11, 5, 5, 1]);
    expect(figuresOf(report)).toEqual([5, 5, 0, 0]);
  });

  it('has no goodput without an SLO', async () => {
    const free = sweepOf({ base: { workload: 'plain', requests: 5 }, grid: { rate: [1] } }, 'a.yaml');
    const { results } = await runSweep(free, { jobs: 1 });
    expect(estimatesOf(free.points, results, 'goodputRequestsPerSecond')).toEqual([undefined]);
    expect(sweepPage(free, results, 'a')).not.toContain('Goodput');
  });

  it('has an error as the result of a run whose thread ends, and runs the others on new threads', async () => {
    const entry = join(folder, 'worker.mjs');
    const answers =
      '({ call, options }) => (options.seed === 3 ? process.exit(9) : parentPort.postMessage({ call, report }))';
    writeFileSync(
      entry,
      `import { parentPort } from 'node:worker_threads';\nconst report = { requests: 5 };\nparentPort.on('message', ${answers});\n`,
    );
    const threads = new SimulationThreads({ size: 2, startsAtOnce: true, entry: pathToFileURL(entry) });
    const { results } = await runSweep(sweep, { threads });
    const error = 'Cannot simulate: its thread has ended: exit code 9';
    const report = { requests: 5 };
    expect(results).toEqual([{ error }, { report }, { error }, { report }]);
  });

  it('continues with the results of an interrupted one, without a line that is incomplete or of another version', async () => {
    const path = join(folder, 'out.csv.partial');
    const all = await runSweep(sweep, { jobs: 1, journal: new SweepJournal(path, '1') });
    const lines = readFileSync(path, 'utf8').split('\n');
    rmSync(path);
    appendFileSync(path, `${lines[0]}\n${lines[3]}\n${lines[1].replace('"1"', '"0"')}\n${lines[2].slice(0, 90)}`);
    const shown: string[] = [];
    const progress = new SweepProgress({ isTTY: true, write: (text) => shown.push(text) }, () => shown.length * 1000);
    const journal = new SweepJournal(path, '1');
    const again = await runSweep(sweep, { jobs: 1, journal, progress });
    expect(again.continued).toBe(2);
    expect(csvOf(sweep, again.results)).toBe(csvOf(sweep, all.results));
    expect(shown[0]).toContain('Sweeping: 3 of 4 runs, 0 s left');
    journal.remove();
    expect(existsSync(path)).toBe(false);
  });
});

describe('a table of a page', () => {
  const rate = [
    { name: 'slow', rate: 1 },
    { name: 'fast', rate: 4 },
  ];
  const content = {
    ...{ base, grid: { rate, mixed: [1, 2] }, seeds: 2 },
    figure: {
      ...{ title: 'A', page: 'a.md', rows: { rate: 'load' }, across: 'mixed', above: [['published', '9', '']] },
      cells: { within: '{report.withinSlo|n0} of {requests|n1} ({withinSlo|share0} %)', none: '{migration.moved|n0}' },
    },
  };
  const table = figureTableOf(content, 'a.yaml');

  it('has the figures of a sweep, means over its seeds, and replaces the lines between its marks', async () => {
    const swept = sweepOf(content, 'a.yaml');
    const { results } = await runSweep(swept, { jobs: 1 });
    const lines = markdownTable(table, swept, results);
    expect(lines).toEqual([
      '| load | 1 within | 1 none | 2 within | 2 none |',
      '| --- | --- | --- | --- | --- |',
      '| published | 9 | |',
      '| slow | 5 of 5.0 (100 %) | | 5 of 5.0 (100 %) | |',
      '| fast | 5 of 5.0 (100 %) | | 5 of 5.0 (100 %) | |',
    ]);
    const failed = results.map((result, i) => (i === 1 ? { error: 'no memory' } : result));
    expect(markdownTable(table, swept, failed)[3]).toBe('| slow | | | 5 of 5.0 (100 %) | |');
    const page = 'before\n<!-- reproduce a -->\n\n| old |\n\n<!-- end -->\nafter';
    expect(withTable(page, 'a', ['| new |'])).toBe(page.replace('old', 'new'));
    expect(() => withTable(page, 'b', [])).toThrow('Cannot find the table b');
  });

  it('compares runs seed by seed, with the range over the seeds, beside figures of other sources', async () => {
    const cells = { '': "{completed / completed@'2'|n1} {ttftMsMean - 5 * 0|n0~} {simulatedSeconds|n1~}" };
    const figure = {
      ...{ ...content.figure, cells, above: [] },
      after: { change: "{requests@'2' / requests@'1' * 100 - 100|n0} %" },
      beside: { published: { slow: '1.5' } },
    };
    const swept = sweepOf(content, 'a.yaml');
    const { results } = await runSweep(swept, { jobs: 1 });
    const [head, , slow, fast] = markdownTable(figureTableOf({ ...content, figure }, 'a.yaml'), swept, results);
    expect(head).toBe('| load | 1 | 2 | change | published |');
    expect(slow).toMatch(/^\| slow \| 1\.0 0 [\d.]+ \([\d.]+ to [\d.]+\) \| .* \| 0 % \| 1\.5 \|$/);
    expect(fast).toMatch(/\| 0 % \| \|$/);
    const unknown = figureTableOf({ ...content, figure: { ...figure, after: { a: "{requests@'9'|n0}" } } }, 'a.yaml');
    expect(() => markdownTable(unknown, swept, results)).toThrow(
      "Cannot compare with '9': no entry of the grid has it",
    );
  });

  it('is refused with the wrong entry', () => {
    const wrong = { ...content, figure: { ...content.figure, rows: 3 } };
    expect(() => figureTableOf(wrong, 'a.yaml')).toThrow('Cannot read a.yaml: figure.rows');
  });

  it('of every file of experiments/figures can be run, and has its place on its page', () => {
    const root = new URL('../../../', import.meta.url);
    const folder = new URL('experiments/figures', root);
    const found = readdirSync(folder, { recursive: true, encoding: 'utf8' });
    const files = found.filter((file) => file.endsWith('.yaml'));
    expect(files.length).toBeGreaterThan(5);
    expect(new Set(files.map((file) => basename(file))).size).toBe(files.length);
    for (const file of files) {
      const figure = readYaml(fileURLToPath(new URL(`experiments/figures/${file}`, root))) as {
        base: { config?: string };
      };
      const { config } = figure.base;
      const located = config && { config: fileURLToPath(new URL(config, root)) };
      const swept = sweepOf({ ...figure, base: { ...figure.base, ...located } }, file);
      const { page } = figureTableOf(figure, file);
      const lines = markdownTable(
        figureTableOf(figure, file),
        swept,
        swept.points.map(() => ({ error: '' })),
      );
      const text = readFileSync(new URL(page, root), 'utf8');
      expect(text).toContain(lines[0]);
      expect(withTable(text, basename(file, '.yaml'), lines)).toContain(lines[0]);
    }
  });
});

describe('simulations from a program', () => {
  it('have the figures of the command, and name a wrong flag', async () => {
    const { wallSeconds: _, ...report } = await reportOfRun(sweepOf({ base }, 'a.yaml').points[0].options);
    const flags = { workload: 'plain', requests: 5, ttftSlo: '2s', tbtSlo: '100ms', seed: 3 };
    expect(await simulate(flags)).toMatchObject(report);
    const prompts = { requests: 20, input: '20000', output: '2', ttftSlo: '5s', tbtSlo: '1s', findRate: 0.9 };
    const searched = await simulate({ ...flags, ...prompts });
    const { rate = 0, above = 0 } = searched.highestRate ?? {};
    expect(above / rate).toBeLessThan(1.011);
    expect(searched.withinSlo).toBeGreaterThanOrEqual(18);
    const runs = await sweepOver({ base, grid: { rate: [1] } }, { jobs: 1 });
    expect(runs).toMatchObject([{ settings: { rate: '1' }, seed: 3, report: { requests: 5 } }]);
    expect(() => simulate({ rate: -1 })).toThrow('Cannot use --rate -1');
  });
});

it('an estimate is the mean with its 95 % interval, and is missing where a value is', () => {
  expect(estimateOf([3])).toEqual({ mean: 3, error: 0 });
  expect(estimateOf([1, 2, 3])?.error).toBeCloseTo(4.303 / Math.sqrt(3));
  expect(estimateOf([1, undefined])).toBeUndefined();
});

describe('a search that runs ahead', () => {
  const limit = 17.3;
  const search = (atOnce: number, run = async (rate: number) => rate <= limit) =>
    searchAhead((meets: (rate: number) => Promise<boolean>) => findRate(1, meets), {
      run,
      keyOf: String,
      guesses: [true, false],
      atOnce,
    });

  it.each([1, 2, 3, 8])('finds the same with %d trials at once', async (atOnce) => {
    expect(await search(atOnce)).toEqual(await findRate(1, async (rate) => rate <= limit));
  });

  it('requires fewer rounds with more trials at once', async () => {
    const roundsWith = async (atOnce: number) => {
      let [rounds, waiting] = [0, 0];
      await search(atOnce, async (rate) => {
        if (waiting++ === 0) rounds++;
        await new Promise(setImmediate);
        waiting--;
        return rate <= limit;
      });
      return rounds;
    };
    expect(await roundsWith(8)).toBeLessThan(0.6 * (await roundsWith(1)));
  });

  it('fails with the error of a trial that it reaches, and ignores others', async () => {
    const failing = (broken: (rate: number) => boolean) => async (rate: number) => {
      if (broken(rate)) throw new Error(`no ${rate}`);
      return rate <= limit;
    };
    await expect(
      search(
        4,
        failing((rate) => rate === 16),
      ),
    ).rejects.toThrow('no 16');
    expect(
      (
        await search(
          4,
          failing((rate) => rate > 32),
        )
      ).rate,
    ).toBeLessThanOrEqual(limit);
  });
});
