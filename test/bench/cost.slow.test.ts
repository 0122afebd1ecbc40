// The cost models against measured servers, and the search for constants on known errors.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { allGroups, errorsOf, type GroupErrors, groupErrors, type PointErrors } from '../../src/bench/cost/errors.ts';
import {
  type Constants,
  candidateConstants,
  type FittedEfficiency,
  rooflineRanges,
  type Search,
  searchConstants,
  tableRanges,
} from '../../src/bench/cost/fit.ts';
import type { ServingPoint } from '../../src/bench/cost/points.ts';
import { scatterSvg } from '../../src/bench/cost/scatter.ts';
import type { StepOverheads } from '../../src/core/cost/tables/table-cost.ts';

const command = fileURLToPath(new URL('../../bundle/cli/main.js', import.meta.url));
const tables = fileURLToPath(new URL('../../../shared/traces/aic', import.meta.url));

function point(model: string, tensorParallel: number, concurrency: number): ServingPoint {
  return {
    id: `${model} ${tensorParallel} ${concurrency}`,
    model,
    hardware: 'h100x8',
    precision: 'bf16',
    kv: 'bf16',
    tensorParallel,
    concurrency,
    inputTokens: 1000,
    outputTokens: 100,
    spread: 0,
    ttftMs: 100,
    tpotMs: 10,
  };
}

const points = [point('a', 1, 8), point('a', 2, 64), point('b', 1, 8), point('b', 2, 64)];
/** Each point with a TPOT too long by this factor, and a correct TTFT. */
const errors = (...factors: readonly number[]) =>
  points.map((each, i) => errorsOf(each, { ttftMs: 100, tpotMs: 10 * (factors[i] ?? 1) }));

describe('errors', () => {
  it('are relative: medians of absolute and signed values, with TTFT of few clients separate', () => {
    const measured = [point('a', 1, 8), point('a', 1, 16), point('a', 1, 32)];
    const some = measured.map((each, i) => errorsOf(each, { ttftMs: 100 + 20 * (i + 1), tpotMs: [9, 12, 7][i] ?? 0 }));
    expect(groupErrors('all', some)).toEqual({
      group: 'all',
      points: 3,
      tpotError: 20,
      tpotBias: -10,
      pointsTo16: 2,
      ttftErrorTo16: 20,
      ttftBiasTo16: 20,
      ttftError: 40,
    });
    expect(allGroups(errors()).map(({ group, points: n }) => [group, n])).toEqual([
      ['all', 4],
      ['a h100x8 bf16 tp1', 1],
      ['a h100x8 bf16 tp2', 1],
      ['b h100x8 bf16 tp1', 1],
      ['b h100x8 bf16 tp2', 1],
    ]);
  });
});

describe('the search for constants', () => {
  /** A server that is a tenth slower for model b; the decode factor is its only constant. */
  const measure = ({ overheads }: Constants<StepOverheads>, some: readonly ServingPoint[]): readonly PointErrors[] =>
    some.map((each) => {
      const tpotMs = 10 * (overheads.decodeFactor / (each.model === 'a' ? 1 : 1.1));
      return errorsOf(each, { ttftMs: 100, tpotMs });
    });
  const search = (isSearched: Search<StepOverheads>['isSearched'] = () => true) =>
    searchConstants(points, { ranges: tableRanges, measure, isSearched, draws: 30, steps: 15 });

  it('evaluates each model and parallel size with constants fitted without it', () => {
    const { folds } = search();
    expect(folds.map(({ leftOut }) => leftOut)).toEqual(['a', 'b', 'tp1', 'tp2']);
    const [a, b] = folds;
    // Without a, b determines the constants, and the reverse.
    expect(a?.constants.overheads.decodeFactor).toBeCloseTo(1.1, 1);
    expect(b?.constants.overheads.decodeFactor).toBeCloseTo(1, 1);
    for (const { leftOut, constants, errors: judged } of folds) {
      const members = points.filter(({ model, tensorParallel }) => [model, `tp${tensorParallel}`].includes(leftOut));
      expect(judged).toEqual(measure(constants, members));
    }
  });

  it('evaluates points outside the search', () => {
    const { found, folds } = search(({ model }) => model === 'a');
    expect(found.overheads.decodeFactor).toBeCloseTo(1, 1);
    expect(folds[1]?.errors).toHaveLength(2);
  });

  it('is the same every time, its draws all different', () => {
    expect(search()).toEqual(search());
    expect(new Set(Array.from({ length: 50 }, (_, i) => JSON.stringify(candidateConstants(tableRanges, i)))).size).toBe(
      50,
    );
  });
});

describe('the efficiency of the roofline', () => {
  it('is found from steps that were timed with another one', () => {
    const stepMs = ({ overheads }: Constants<FittedEfficiency>, tp: number) =>
      overheads.stepUs / 1000 + 10 / overheads.memory + (tp - 1) * overheads.reduceUs;
    const hidden = candidateConstants(rooflineRanges, 1000);
    const served = points.map((each) => ({ ...each, tpotMs: stepMs(hidden, each.tensorParallel) }));
    const measure = (constants: Constants<FittedEfficiency>, some: readonly ServingPoint[]) =>
      some.map((each) => errorsOf(each, { ttftMs: 100, tpotMs: stepMs(constants, each.tensorParallel) }));
    const { found } = searchConstants(served, {
      ...{ ranges: rooflineRanges, measure, isSearched: () => true, draws: 200, steps: 200 },
    });
    for (const { tpot } of measure(found, served)) expect(Math.abs(tpot)).toBeLessThan(0.05);
  });
});

describe('the plot', () => {
  it('has a dot for each point in each half, inside the page, and no external content', () => {
    const svg = scatterSvg(errors(1, 2, 0.5, 1));
    const dots = [...svg.matchAll(/<circle cx="([\d.]+)" cy="([\d.]+)" r="3.5"/g)];
    expect(dots).toHaveLength(8);
    for (const [, x, y] of dots) {
      expect(Number(x)).toBeLessThan(840);
      expect(Number(y)).toBeLessThan(420);
    }
    expect(svg.match(/https?:[^"]*/g)).toEqual(['http://www.w3.org/2000/svg']);
  });
});

describe.skipIf(!existsSync(tables))('measured servers (need ../shared/traces)', () => {
  it('match: median TPOT within 10 %, median TTFT of at most 16 clients within 20 %', () => {
    const args = ['bench', 'cost', '--tables', tables, '--cost', 'table', '--json'];
    const { stdout } = spawnSync(process.execPath, [command, ...args], { encoding: 'utf8', maxBuffer: 2 ** 26 });
    const report = JSON.parse(stdout) as { models: { cost: string; groups: GroupErrors[] }[]; rows: unknown[] };
    const all = report.models[0]?.groups[0];
    expect(all).toMatchObject({ group: 'all', points: 219, pointsTo16: 100 });
    expect(all?.tpotError).toBeLessThanOrEqual(10);
    expect(all?.ttftErrorTo16).toBeLessThanOrEqual(20);
    expect(report.rows).toHaveLength(219);
  });
});
