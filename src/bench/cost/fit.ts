// Fits constants of a cost model by search with cross-validation.

import type { Efficiency } from '../../core/cost/shapes.ts';
import type { StepOverheads } from '../../core/cost/tables/table-cost.ts';
import { counterUniform } from '../../util/counter-random.ts';
import { hasFewClients, type PointErrors } from './errors.ts';
import type { FrontendTimes, ServingPoint } from './points.ts';

/** Constants of a cost model, by name, and those of the process before the engine. */
export interface Constants<Costs> {
  readonly overheads: Costs;
  readonly front: FrontendTimes;
}

export interface Fold<Costs> {
  readonly leftOut: string;
  /** Fitted on all other points. */
  readonly constants: Constants<Costs>;
  readonly errors: readonly PointErrors[];
}

/** Search range of each constant, sampled evenly, and the decimals of its values. */
export type Ranges<Costs> = { readonly [Name in keyof Costs]-?: readonly [from: number, to: number, decimals: 0 | 2] };

/** Constants of the measured tables. */
export const tableRanges: Ranges<StepOverheads> = {
  stepUs: [500, 4000, 0],
  sequenceUs: [0, 40, 0],
  layerUs: [5, 20, 2],
  decodeFactor: [0.95, 1.2, 2],
  prefillFactor: [1, 1.5, 2],
  decodeReduceFactor: [0.2, 1, 2],
  prefillReduceFactor: [0.2, 1.2, 2],
};

/** Constants of the roofline: the `efficiency` of a hardware entry. */
export const rooflineRanges: Ranges<FittedEfficiency> = {
  stepUs: [500, 6000, 0],
  sequenceUs: [0, 40, 0],
  layerUs: [5, 60, 2],
  compute: [0.3, 0.9, 2],
  memory: [0.4, 0.95, 2],
  attentionCompute: [0.2, 0.9, 2],
  attentionMemory: [0.2, 0.95, 2],
  link: [0.2, 0.95, 2],
  reduceUs: [0, 30, 2],
};

export type FittedEfficiency = {
  readonly [Name in Exclude<keyof Efficiency, 'computeShard' | 'memoryShard'>]-?: number;
};

const frontRanges: Ranges<FrontendTimes> = { requestUs: [500, 10_000, 0], tokenUs: [0, 6, 2] };

/** Largest search step in each direction, as a share of the range. */
const stepShare = 0.15;

/** Random candidate `index`; with `near`, one around those constants. */
export function candidateConstants<Costs extends object>(
  ranges: Ranges<Costs>,
  index: number,
  near?: Constants<Costs>,
): Constants<Costs> {
  const names = [...Object.keys(ranges), ...Object.keys(frontRanges)];
  const drawn = <Part extends object>(some: Ranges<Part>, known: Part | undefined): Part => {
    const values = Object.entries<readonly [number, number, 0 | 2]>(some).map(([name, [from, to, decimals]]) => {
      const uniform = counterUniform(near === undefined ? 2 : 3, 0, index * names.length + names.indexOf(name));
      const middle = known?.[name as keyof Part] as number | undefined;
      const value =
        middle === undefined
          ? from + (to - from) * uniform
          : Math.max(from, Math.min(to, middle + (to - from) * stepShare * (2 * uniform - 1)));
      return [name, Math.round(value * 10 ** decimals) / 10 ** decimals];
    });
    return Object.fromEntries(values) as Part;
  };
  return { overheads: drawn(ranges, near?.overheads), front: drawn(frontRanges, near?.front) };
}

/** Errors are clipped here, so that unreachable points do not distort the constants. */
const errorMax = 0.5;

/** Mean errors of TPOT, and of TTFT with few clients, over their targets of 10 % and 20 %. */
function loss(errors: readonly PointErrors[]): number {
  const mean = (values: readonly number[]) =>
    values.reduce((sum, value) => sum + Math.min(errorMax, Math.abs(value)), 0) / Math.max(1, values.length);
  return mean(errors.map(({ tpot }) => tpot)) / 0.1 + mean(errors.filter(hasFewClients).map(({ ttft }) => ttft)) / 0.2;
}

/** Simulates points with constants. */
type Measure<Costs> = (constants: Constants<Costs>, points: readonly ServingPoint[]) => readonly PointErrors[];

export interface Search<Costs> {
  readonly ranges: Ranges<Costs>;
  /** Errors that the search minimises. */
  readonly measure: Measure<Costs>;
  /** Errors of the points left out; undefined: by `measure`. */
  readonly judge?: Measure<Costs> | undefined;
  /** Times of the process before the engine; undefined: they are searched for too. */
  readonly front?: FrontendTimes | undefined;
  /** Points in the search; the others are only evaluated. */
  readonly isSearched: (point: ServingPoint) => boolean;
  /** Random candidates shared by all folds, then search steps from the best of them per fold. */
  readonly draws: number;
  readonly steps: number;
}

/** Fits on all points, then without each model, then without each tensor-parallel size. */
export function searchConstants<Costs extends object>(
  points: readonly ServingPoint[],
  search: Search<Costs>,
): { found: Constants<Costs>; folds: readonly Fold<Costs>[] } {
  const { ranges, measure, judge = measure, isSearched, draws } = search;
  const candidate = (index: number, near?: Constants<Costs>): Constants<Costs> => {
    const { overheads, front } = candidateConstants(ranges, index, near);
    return { overheads, front: search.front ?? front };
  };
  const searched = points.filter(isSearched);
  const tried = Array.from({ length: draws }, (_, i) => {
    const constants = candidate(i);
    return { constants, errors: measure(constants, searched) };
  });
  const without = (leftOut: (point: ServingPoint) => boolean): Constants<Costs> => {
    const counted = searched.filter((point) => !leftOut(point));
    let best = { constants: candidate(0), loss: Number.POSITIVE_INFINITY };
    const consider = (constants: Constants<Costs>, errors: readonly PointErrors[]) => {
      const found = loss(errors.filter(({ point }) => !leftOut(point)));
      if (found < best.loss) best = { constants, loss: found };
    };
    for (const { constants, errors } of tried) consider(constants, errors);
    for (let i = 0; i < search.steps; i++) {
      const constants = candidate(i, best.constants);
      consider(constants, measure(constants, counted));
    }
    return best.constants;
  };
  const kinds: readonly ((point: ServingPoint) => string)[] = [
    ({ model }) => model,
    ({ tensorParallel }) => `tp${tensorParallel}`,
  ];
  const folds = kinds.flatMap((kindOf) =>
    [...new Set(points.map(kindOf))].sort().map((leftOut) => {
      const isLeftOut = (point: ServingPoint) => kindOf(point) === leftOut;
      const constants = without(isLeftOut);
      return { leftOut, constants, errors: judge(constants, points.filter(isLeftOut)) };
    }),
  );
  return { found: without(() => false), folds };
}
