// Errors of simulated points against measured ones, by point and by group.
import { median, round } from '../statistics.ts';
import type { ServingPoint, SimulatedLatency } from './points.ts';

export interface PointErrors {
  readonly point: ServingPoint;
  readonly served: SimulatedLatency;
  /** (simulated - measured) / measured */
  readonly tpot: number;
  readonly ttft: number;
}

/** Medians of absolute errors, and of signed ones, in percent. */
export interface GroupErrors {
  readonly group: string;
  readonly points: number;
  readonly tpotError: number | undefined;
  readonly tpotBias: number | undefined;
  /** Points of at most 16 clients: with more, TTFT is mostly queueing. */
  readonly pointsTo16: number;
  readonly ttftErrorTo16: number | undefined;
  readonly ttftBiasTo16: number | undefined;
  readonly ttftError: number | undefined;
}

const fewClients = 16;

export function errorsOf(point: ServingPoint, served: SimulatedLatency): PointErrors {
  return {
    point,
    served,
    tpot: (served.tpotMs - point.tpotMs) / point.tpotMs,
    ttft: (served.ttftMs - point.ttftMs) / point.ttftMs,
  };
}

export function hasFewClients({ point }: PointErrors): boolean {
  return point.concurrency <= fewClients;
}

export function groupErrors(group: string, errors: readonly PointErrors[]): GroupErrors {
  const tpots = errors.map(({ tpot }) => tpot);
  const ttfts = errors.map(({ ttft }) => ttft);
  const few = errors.filter(hasFewClients).map(({ ttft }) => ttft);
  return {
    group,
    points: errors.length,
    tpotError: medianPercent(tpots.map(Math.abs)),
    tpotBias: medianPercent(tpots),
    pointsTo16: few.length,
    ttftErrorTo16: medianPercent(few.map(Math.abs)),
    ttftBiasTo16: medianPercent(few),
    ttftError: medianPercent(ttfts.map(Math.abs)),
  };
}

function medianPercent(values: readonly number[]): number | undefined {
  const middle = median(values);
  return middle === undefined ? undefined : round(100 * middle);
}

/** Errors of all points, then of each model, hardware, precision and tensor-parallel size. */
export function allGroups(errors: readonly PointErrors[]): readonly GroupErrors[] {
  const groups = new Map<string, PointErrors[]>();
  for (const error of errors) {
    const { model, hardware, precision, tensorParallel } = error.point;
    const name = `${model} ${hardware} ${precision} tp${tensorParallel}`;
    groups.set(name, [...(groups.get(name) ?? []), error]);
  }
  const sorted = [...groups].sort(([a], [b]) => (a < b ? -1 : 1));
  return [groupErrors('all', errors), ...sorted.map(([name, members]) => groupErrors(name, members))];
}
