// `kvasir bench cost`: the cost models against measured servers, point by point.
import { Command } from 'commander';
import { z } from 'zod';
import { allGroups, errorsOf, groupErrors, type PointErrors } from '../../bench/cost/errors.ts';
import { estimatePoint } from '../../bench/cost/estimate.ts';
import {
  type Constants,
  type FittedEfficiency,
  type Fold,
  rooflineRanges,
  type Search,
  searchConstants,
  tableRanges,
} from '../../bench/cost/fit.ts';
import { kernelEfficiency } from '../../bench/cost/kernel-fit.ts';
import { type FrontendTimes, fittedFrontend, type ServingPoint, simulatePoint } from '../../bench/cost/points.ts';
import { scatterSvg } from '../../bench/cost/scatter.ts';
import { round } from '../../bench/statistics.ts';
import { parameters } from '../../core/cost/memory.ts';
import { RooflineCost, type StepCostModel } from '../../core/cost/roofline.ts';
import type { MeasuredTables } from '../../core/cost/tables/measured-tables.ts';
import { fittedOverheads, type StepKernels, type StepOverheads, TableCost } from '../../core/cost/tables/table-cost.ts';
import {
  type CostKind,
  type CostOptions,
  costKinds,
  createCostModel,
  instanceShape,
  measuredKernels,
  readTables,
} from '../options/cost-model.ts';
import { readOptions } from '../options/options.ts';
import { hardwareSpec, modelSpec } from '../options/specs.ts';
import { readMeasuredTables } from '../simulate/measured-tables.ts';
import { checkOutputs, writeOutput } from '../simulate/outputs/output-file.ts';
import { readServingPoints } from '../simulate/silicon-points.ts';
import { printTable } from '../terminal/table.ts';
import { list, progress } from './options.ts';

const schema = z.object({
  tables: z.string(),
  plot: z.string().optional(),
  fit: z.coerce.number().int().min(0).default(0),
  machines: z.string().optional(),
  fitKernels: z.boolean().default(false),
  cost: list(z.enum(costKinds), ['table', 'roofline']),
});

export function costCommand(): Command {
  return new Command('cost')
    .requiredOption('--tables <dir>', 'Read measured kernel latencies and silicon_sample.csv from this directory')
    .option('--cost <list>', 'Check these cost models (default: table,roofline)')
    .option('--machines <file>', 'Read hardware from this YAML file, with the efficiency of the roofline')
    .option('--plot <file>', 'Plot simulated against measured times of the first model as SVG')
    .option(
      '--fit <n>',
      'Fit constants of the first model with this number of random draws, leaving out a model or parallel size each time',
    )
    .option('--fit-kernels', 'Print the efficiency of A100, H100 and H200 that fits the measured kernels alone')
    .option('--json', 'Print one JSON object')
    .action(({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { tables, plot, fit, cost, machines, fitKernels } = readOptions(schema, flags);
      if (fitKernels) {
        const found = fittedSystems.map((hardware) => ({ hardware, ...fittedKernels(tables, hardware, machines) }));
        return json === true ? console.log(JSON.stringify(found)) : printTable(found, 'Efficiency by measured kernels');
      }
      checkOutputs({ plot });
      const points = readServingPoints(tables);
      const servers = new Servers(tables, machines);
      const simulated = cost.map((kind) => ({
        cost: kind,
        errors: points.map((point) => servers.simulated(kind, point)),
      }));
      const groups = simulated.map(({ cost: kind, errors }) => ({ cost: kind, groups: allGroups(errors) }));
      const drawn = simulated[0]?.errors ?? [];
      if (plot !== undefined) writeOutput(plot, scatterSvg(drawn));
      const found = fit > 0 ? servers.search(cost[0], points, fit) : undefined;
      if (json === true) {
        const rows = simulated.flatMap(({ cost: kind, errors }) => errors.map((error) => rowOf(kind, error)));
        return console.log(JSON.stringify({ models: groups, fit: found, rows }));
      }
      for (const { cost: kind, groups: rows } of groups) printTable(rows, `Errors of the ${kind} model`);
      if (found === undefined) return;
      printTable(
        [...found.folds.map(({ constants: _, ...errors }) => errors), ...found.pooled],
        'Errors with constants fitted to the others',
      );
      printTable([{ ...found.found.overheads, ...found.found.front }], 'Constants fitted to all points');
    });
}

const fittedSystems = ['a100x8', 'h100x8', 'h200x8'] as const;

/** Rounded: shares to thousandths, shards to thousands of weights, times to tenths of a microsecond. */
function fittedKernels(tables: string, hardware: string, machines: string | undefined) {
  const measured = readMeasuredTables(tables, { hardware, precision: 'bf16', kvType: 'bf16' });
  const { operationsPerSecond, ...device } = hardwareSpec(hardware, machines);
  const found = kernelEfficiency(measured, { ...device, operationsPerSecond: operationsPerSecond.bf16 });
  const digits = (name: string) => (name.endsWith('Shard') ? -3 : name.endsWith('Us') ? 1 : 3);
  return Object.fromEntries(
    Object.entries(found).map(([name, value = 0]) => {
      const scale = 10 ** digits(name);
      return [name, Math.round(value * scale) / scale];
    }),
  );
}

/** The server of each point, with cached tables and kernel times. */
class Servers {
  readonly #directory: string;
  readonly #machines: string | undefined;
  readonly #tables = new Map<string, MeasuredTables>();
  readonly #kernels = new Map<string, StepKernels>();

  constructor(directory: string, machines: string | undefined) {
    this.#directory = directory;
    this.#machines = machines;
  }

  simulated(kind: CostKind, point: ServingPoint): PointErrors {
    if (kind === 'table') return this.measured(point, { overheads: fittedOverheads, front: fittedFrontend });
    return withCost(point, createCostModel({ ...this.#optionsOf(point), cost: kind }), fittedFrontend);
  }

  /** Errors by measured tables with these constants. */
  measured(point: ServingPoint, { overheads, front }: Constants<StepOverheads>): PointErrors {
    return withCost(point, new TableCost(this.#kernelsOf(point), overheads), front);
  }

  #roofline(point: ServingPoint, { overheads: efficiency }: Constants<FittedEfficiency>): RooflineCost {
    const { device, shape } = instanceShape(this.#optionsOf(point));
    return new RooflineCost({ ...shape, device, efficiency });
  }

  /** Fits the constants of a cost model. The roofline has a search in closed form; only its folds are simulated. */
  search(kind: CostKind, points: readonly ServingPoint[], draws: number) {
    if (kind === 'table') {
      const measure = (point: ServingPoint, constants: Constants<StepOverheads>) => this.measured(point, constants);
      return search({ ranges: tableRanges, measure }, points, draws);
    }
    const measure = (point: ServingPoint, constants: Constants<FittedEfficiency>) =>
      errorsOf(point, estimatePoint(point, this.#roofline(point, constants), fittedFrontend));
    const judge = (point: ServingPoint, constants: Constants<FittedEfficiency>) =>
      withCost(point, this.#roofline(point, constants), fittedFrontend);
    return search({ ranges: rooflineRanges, measure, judge, front: fittedFrontend }, points, draws);
  }

  #kernelsOf(point: ServingPoint): StepKernels {
    const { hardware, precision, kv } = point;
    const options = this.#optionsOf(point);
    const tablesKey = [hardware, precision, kv].join();
    const tables = this.#tables.get(tablesKey) ?? readTables(options);
    this.#tables.set(tablesKey, tables);
    const kernelsKey = [tablesKey, point.model, point.tensorParallel].join();
    const kernels = this.#kernels.get(kernelsKey) ?? measuredKernels(options, tables);
    this.#kernels.set(kernelsKey, kernels);
    return kernels;
  }

  #optionsOf({ tensorParallel, kv, ...point }: ServingPoint): CostOptions {
    return {
      ...point,
      kvType: kv,
      cost: 'table',
      tables: this.#directory,
      machines: this.#machines,
      tp: tensorParallel,
      pp: 1,
    };
  }
}

function withCost(point: ServingPoint, cost: StepCostModel, front: FrontendTimes): PointErrors {
  const weightBytes = parameters(modelSpec(point.model)) * (point.precision === 'fp8' ? 1 : 2);
  const { memoryBytes } = hardwareSpec(point.hardware);
  return errorsOf(point, simulatePoint(point, { cost, memoryBytes, weightBytes }, front));
}

/** True for points that simulate fast. The others take no part in the search, only in the errors. */
function isSearched({ outputTokens, concurrency }: ServingPoint): boolean {
  return outputTokens <= 1024 && concurrency <= 32;
}

/** Search steps per draw. */
const stepShare = 1 / 4;

interface Fit<Costs> extends Pick<Search<Costs>, 'ranges' | 'front'> {
  measure(point: ServingPoint, constants: Constants<Costs>): PointErrors;
  judge?(point: ServingPoint, constants: Constants<Costs>): PointErrors;
}

function search<Costs extends object>(
  { ranges, front, measure, judge = measure }: Fit<Costs>,
  points: readonly ServingPoint[],
  draws: number,
) {
  let runs = 0;
  const { found, folds } = searchConstants(points, {
    ranges,
    front,
    measure: (constants, some) => {
      progress(`run ${++runs}: ${some.length} points`);
      return some.map((point) => measure(point, constants));
    },
    judge: (constants, some) => some.map((point) => judge(point, constants)),
    isSearched,
    draws,
    steps: Math.ceil(draws * stepShare),
  });
  const isModel = ({ leftOut }: Fold<Costs>) => !leftOut.startsWith('tp');
  const pooled = (group: string, some: readonly Fold<Costs>[]) =>
    groupErrors(
      group,
      some.flatMap(({ errors }) => errors),
    );
  return {
    found,
    folds: folds.map(({ leftOut, constants, errors }) => ({ ...groupErrors(leftOut, errors), constants })),
    pooled: [
      pooled('each model left out', folds.filter(isModel)),
      pooled(
        'each tp left out',
        folds.filter((fold) => !isModel(fold)),
      ),
    ],
  };
}

function rowOf(cost: CostKind, { point, served, tpot, ttft }: PointErrors) {
  return {
    cost,
    ...point,
    simulatedTtftMs: round(served.ttftMs),
    simulatedTpotMs: round(served.tpotMs),
    ttftErrorPercent: round(100 * ttft),
    tpotErrorPercent: round(100 * tpot),
  };
}
