// Constants of the measured cost model by search, each time without some of the points, which then judge what was found.
import type { StepOverheads } from '../../policy/cost/table-cost.ts';
import { counterUniform } from '../../util/counter-random.ts';
import { type GroupErrors, groupErrors, hasFewClients, type PointErrors } from './errors.ts';
import type { FrontTimes, ServingPoint } from './points.ts';

export interface Constants {
  readonly overheads: StepOverheads;
  readonly front: FrontTimes;
}

export interface Fold {
  readonly leftOut: string;
  /** The candidate with the least error on all other points. */
  readonly candidate: number;
  /** Of what was fitted, on points it was not fitted on. */
  readonly errors: GroupErrors;
}

/** From where to where each constant is looked for, evenly. */
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

/** An error larger than this counts as this: a point that cannot be met is to pull no constant. */
const errorMax = 0.5;

/** Candidate `index`, the same for everybody: drawn before any point was seen. */
export function candidateConstants(index: number): Constants {
  const names = Object.keys(ranges) as Name[];
  const at = (name: Name): number => {
    const [from, to] = ranges[name];
    return from + (to - from) * counterUniform(2, 0, index * names.length + names.indexOf(name));
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

function twoDigits(value: number): number {
  return Math.round(value * 100) / 100;
}

/** Mean errors of TPOT, and of TTFT with few clients, against what is asked of each: 10 % and 20 %. */
function badness(errors: readonly PointErrors[]): number {
  const mean = (values: readonly number[]) =>
    values.reduce((sum, value) => sum + Math.min(errorMax, Math.abs(value)), 0) / Math.max(1, values.length);
  return mean(errors.map(({ tpot }) => tpot)) / 0.1 + mean(errors.filter(hasFewClients).map(({ ttft }) => ttft)) / 0.2;
}

/** @param candidates errors of each on every point. Returns the index of the best. */
export function bestOf(
  candidates: readonly (readonly PointErrors[])[],
  counts: (point: ServingPoint) => boolean,
): number {
  const scores = candidates.map((errors) => badness(errors.filter(({ point }) => counts(point))));
  return scores.indexOf(Math.min(...scores));
}

/**
 * One fold for each model and each tensor-parallel size that the points have.
 * @param candidates errors of each on the points that are searched
 * @param judge errors of one candidate on any points
 */
export function leaveOut(
  points: readonly ServingPoint[],
  candidates: readonly (readonly PointErrors[])[],
  judge: (candidate: number, points: readonly ServingPoint[]) => readonly PointErrors[],
): readonly Fold[] {
  const kinds: readonly ((point: ServingPoint) => string)[] = [
    ({ model }) => model,
    ({ tensorParallel }) => `tp${tensorParallel}`,
  ];
  return kinds.flatMap((kindOf) =>
    [...new Set(points.map(kindOf))].sort().map((leftOut) => {
      const candidate = bestOf(candidates, (point) => kindOf(point) !== leftOut);
      const judged = points.filter((point) => kindOf(point) === leftOut);
      return { leftOut, candidate, errors: groupErrors(leftOut, judge(candidate, judged)) };
    }),
  );
}
