// Fits constants of the measured cost model by search with cross-validation.
import type { StepOverheads } from '../../core/cost/tables/table-cost.ts';
import { counterUniform } from '../../util/counter-random.ts';
import { hasFewClients, type PointErrors } from './errors.ts';
import type { FrontendTimes, ServingPoint } from './points.ts';

export interface Constants {
  readonly overheads: StepOverheads;
  readonly front: FrontendTimes;
}

export interface Fold {
  readonly leftOut: string;
  /** Fitted on all other points. */
  readonly constants: Constants;
  readonly errors: readonly PointErrors[];
}

/** Search range of each constant, sampled evenly. */
const ranges = {
  stepUs: [500, 4000],
  sequenceUs: [0, 40],
  layerUs: [5, 20],
  decodeFactor: [0.95, 1.2],
  prefillFactor: [1, 1.5],
  decodeReduceFactor: [0.2, 1],
  prefillReduceFactor: [0.2, 1.2],
  requestUs: [500, 10_000],
  tokenUs: [0, 6],
} as const;

type Name = keyof typeof ranges;
const names = Object.keys(ranges) as Name[];

/** Largest search step in each direction, as a share of the range. */
const stepShare = 0.15;

/** Random candidate `index`; with `near`, one around those constants. */
export function candidateConstants(index: number, near?: Constants): Constants {
  const known: Partial<Record<Name, number>> = { ...near?.overheads, ...near?.front };
  const at = (name: Name): number => {
    const [from, to] = ranges[name];
    const uniform = counterUniform(near === undefined ? 2 : 3, 0, index * names.length + names.indexOf(name));
    const middle = known[name];
    if (middle === undefined) return from + (to - from) * uniform;
    return Math.max(from, Math.min(to, middle + (to - from) * stepShare * (2 * uniform - 1)));
  };
  return {
    overheads: {
      stepUs: Math.round(at('stepUs')),
      sequenceUs: Math.round(at('sequenceUs')),
      layerUs: twoDigits(at('layerUs')),
      decodeFactor: twoDigits(at('decodeFactor')),
      prefillFactor: twoDigits(at('prefillFactor')),
      decodeReduceFactor: twoDigits(at('decodeReduceFactor')),
      prefillReduceFactor: twoDigits(at('prefillReduceFactor')),
    },
    front: { requestUs: Math.round(at('requestUs')), tokenUs: twoDigits(at('tokenUs')) },
  };
}

/** Errors are clipped here, so that unreachable points do not distort the constants. */
const errorMax = 0.5;

function twoDigits(value: number): number {
  return Math.round(value * 100) / 100;
}

/** Mean errors of TPOT, and of TTFT with few clients, over their targets of 10 % and 20 %. */
function loss(errors: readonly PointErrors[]): number {
  const mean = (values: readonly number[]) =>
    values.reduce((sum, value) => sum + Math.min(errorMax, Math.abs(value)), 0) / Math.max(1, values.length);
  return mean(errors.map(({ tpot }) => tpot)) / 0.1 + mean(errors.filter(hasFewClients).map(({ ttft }) => ttft)) / 0.2;
}

/** Simulates points with constants. */
type Measure = (constants: Constants, points: readonly ServingPoint[]) => readonly PointErrors[];

export interface Search {
  readonly measure: Measure;
  /** Points in the search; the others are only evaluated. */
  readonly isSearched: (point: ServingPoint) => boolean;
  /** Random candidates shared by all folds, then search steps from the best of them per fold. */
  readonly draws: number;
  readonly steps: number;
}

/** Fits on all points, then without each model, then without each tensor-parallel size. */
export function searchConstants(
  points: readonly ServingPoint[],
  search: Search,
): { found: Constants; folds: readonly Fold[] } {
  const { measure, isSearched, draws } = search;
  const searched = points.filter(isSearched);
  const tried = Array.from({ length: draws }, (_, i) => {
    const constants = candidateConstants(i);
    return { constants, errors: measure(constants, searched) };
  });
  const without = (leftOut: (point: ServingPoint) => boolean): Constants => {
    const counted = searched.filter((point) => !leftOut(point));
    let best = { constants: candidateConstants(0), loss: Number.POSITIVE_INFINITY };
    const consider = (constants: Constants, errors: readonly PointErrors[]) => {
      const found = loss(errors.filter(({ point }) => !leftOut(point)));
      if (found < best.loss) best = { constants, loss: found };
    };
    for (const { constants, errors } of tried) consider(constants, errors);
    for (let i = 0; i < search.steps; i++) {
      const constants = candidateConstants(i, best.constants);
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
      return { leftOut, constants, errors: measure(constants, points.filter(isLeftOut)) };
    }),
  );
  return { found: without(() => false), folds };
}
