// A replay against its recording: latencies, placements and ends of the same requests.

import type { PlacementTrace } from '../../core/protocol/request-trace.ts';
import type { RecordedRequest } from '../../trace/recording/reader.ts';
import type { RecordedCandidate } from '../../trace/recording/recording.ts';
import type { RequestRecord } from '../report/request-recorder.ts';

/** Nearest-rank percentiles in milliseconds; undefined without requests. */
export interface Percentiles {
  readonly p50: number | undefined;
  readonly p90: number | undefined;
  readonly p99: number | undefined;
}

interface Pair<Value> {
  readonly recorded: Value;
  readonly simulated: Value;
}

/** A request that went to other instances than in the recording, or to none in one of both. */
export interface PlacementDifference {
  readonly index: number;
  readonly recorded: readonly (number | undefined)[];
  readonly simulated: readonly (number | undefined)[];
  /** What placement compared. */
  readonly candidates: Pair<readonly RecordedCandidate[]>;
}

export interface ReplayComparison {
  readonly requests: number;
  /** Of the requests that completed in both. */
  readonly ttftMs: Pair<Percentiles>;
  readonly tbtMs: Pair<Percentiles>;
  /** Simulated over recorded medians. */
  readonly ttftRatio: number | undefined;
  readonly tbtRatio: number | undefined;
  readonly completed: Pair<number>;
  readonly refused: Pair<number>;
  /** Share of the prompt tokens that came from caches. */
  readonly hitRatioTokens: Pair<number>;
  /** Requests whose prompt and output were computed by the recorded instances, or that were refused in both. */
  readonly samePlacements: number;
  readonly placementDifferences: readonly PlacementDifference[];
}

/** Differences reported at most; each causes others. */
const differencesMax = 10;

/** @param placements of simulated requests, by index */
export function compareReplay(
  requests: readonly RecordedRequest[],
  records: readonly RequestRecord[],
  placements: ReadonlyMap<number, PlacementTrace> = new Map(),
): ReplayComparison {
  const byIndex = new Map(records.map((record) => [record.index, record]));
  const finished = requests.filter(({ recorded }) => recorded.outcome === 'finished');
  const completed = records.filter(({ outcome }) => outcome === 'completed');
  const both = finished.flatMap(({ request, recorded }) => {
    const simulated = byIndex.get(request.index);
    return simulated?.outcome === 'completed' ? [{ recorded, simulated }] : [];
  });
  const ttftMs = {
    recorded: percentiles(both.map(({ recorded }) => recorded.firstTokenMs)),
    simulated: percentiles(both.map(({ simulated }) => simulated.ttftMs)),
  };
  const tbtMs = {
    recorded: percentiles(both.map(({ recorded }) => recorded.tbtMs)),
    simulated: percentiles(both.map(({ simulated }) => simulated.tbtMs)),
  };
  const differences = requests.flatMap((each) => {
    const { index } = each.request;
    return differenceOf(each, byIndex.get(index), placements.get(index)) ?? [];
  });
  const isRefused = ({ outcome }: RequestRecord) => outcome !== 'completed' && outcome !== 'failed';
  return {
    requests: requests.length,
    ...{ ttftMs, tbtMs, ttftRatio: ratioOf(ttftMs), tbtRatio: ratioOf(tbtMs) },
    completed: { recorded: finished.length, simulated: completed.length },
    refused: {
      recorded: requests.filter(({ recorded }) => recorded.outcome === 'refused').length,
      simulated: records.filter(isRefused).length,
    },
    hitRatioTokens: {
      recorded: shareOf(requests.map(({ request, recorded }) => [recorded.cachedTokens ?? 0, request.inputTokens])),
      simulated: shareOf(records.map(({ cachedTokens, promptTokens }) => [cachedTokens, promptTokens])),
    },
    samePlacements: requests.length - differences.length,
    placementDifferences: differences.slice(0, differencesMax),
  };
}

function differenceOf(
  { request: { index }, recorded: { outcome, instance, decodeInstance, candidates = [] } }: RecordedRequest,
  record: RequestRecord | undefined,
  placement: PlacementTrace | undefined,
): PlacementDifference | undefined {
  const recorded = outcome === 'refused' ? [] : [instance, decodeInstance];
  const isPlaced = record !== undefined && (record.outcome === 'completed' || record.outcome === 'failed');
  const simulated = isPlaced ? [record.instance, record.decodeInstance] : [];
  const isSame = recorded.length === simulated.length && recorded.every((place, i) => place === simulated[i]);
  if (isSame) return undefined;
  const ofReplay = (placement?.candidates ?? []).map(
    ({ instance, requests, matchedTokens, queueUs, prefillUs }): RecordedCandidate => [
      ...([instance, requests, matchedTokens] as const),
      ...([Math.round(queueUs), Math.round(prefillUs)] as const),
    ],
  );
  return { index, recorded, simulated, candidates: { recorded: candidates, simulated: ofReplay } };
}

function percentiles(values: readonly (number | undefined)[]): Percentiles {
  const sorted = values.filter((value) => value !== undefined).sort((a, b) => a - b);
  const at = (p: number) => sorted[Math.min(sorted.length - 1, Math.ceil((p / 100) * sorted.length) - 1)];
  return { p50: at(50), p90: at(90), p99: at(99) };
}

function ratioOf({ recorded, simulated }: Pair<Percentiles>): number | undefined {
  if (recorded.p50 === undefined || simulated.p50 === undefined || recorded.p50 === 0) return undefined;
  return simulated.p50 / recorded.p50;
}

function shareOf(pairs: readonly (readonly [part: number, whole: number])[]): number {
  const whole = pairs.reduce((sum, [, tokens]) => sum + tokens, 0);
  return whole === 0 ? 0 : pairs.reduce((sum, [part]) => sum + part, 0) / whole;
}
