// The content of the report page of a run, as plain data.
import { type Histogram, latencyMs } from './histogram.ts';
import type { LoadOverTime } from './load-recorder.ts';
import type { Outcome } from './outcome.ts';

const binsMax = 96;

export interface LatencyReport {
  readonly mean: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
  readonly count: number;
  /** (from in ms, to in ms, requests) */
  readonly bins: readonly (readonly [number, number, number])[];
}

export interface RunReport {
  /** Names and values of the settings, in display order. */
  readonly settings: readonly (readonly [string, string])[];
  /** (instances): names, in the order of `load`. */
  readonly instances: readonly string[];
  readonly counts: {
    readonly requests: number;
    readonly completed: number;
    /** By reason, without zeros. */
    readonly refused: Readonly<Record<string, number>>;
    readonly withinSlo: number;
    readonly wastedPrefillTokens: number;
    readonly bytesMoved: Readonly<Record<string, number>>;
    readonly hitRatioTokens: number;
    /** Blocks of prompts found in a cache; `missReasons` counts the computed ones by reason. */
    readonly hitBlocks: number;
    readonly missReasons: Readonly<Record<string, number>>;
    readonly outputTokens: number;
    readonly promptTokens: number;
    readonly preemptions: number;
    readonly steps: number;
    readonly simulatedSeconds: number;
    readonly stateHash: string;
  };
  readonly ttftMs: LatencyReport;
  readonly tbtMs: LatencyReport;
  readonly load: LoadOverTime;
}

export function runReport(
  outcome: Outcome,
  load: LoadOverTime,
  { settings, instances }: Pick<RunReport, 'settings' | 'instances'>,
): RunReport {
  const { promptTokens, cachedTokens } = outcome;
  return {
    settings,
    instances,
    counts: {
      requests: outcome.requests,
      completed: outcome.completedRequests,
      refused: outcome.refusedByReason,
      withinSlo: outcome.withinSlo,
      wastedPrefillTokens: outcome.wastedPrefillTokens,
      bytesMoved: outcome.bytesMoved,
      hitRatioTokens: promptTokens === 0 ? 0 : cachedTokens / promptTokens,
      hitBlocks: outcome.hitBlocks,
      missReasons: { ...outcome.missReasons },
      outputTokens: outcome.outputTokens,
      promptTokens,
      preemptions: outcome.preemptions,
      steps: outcome.steps,
      simulatedSeconds: outcome.endUs / 1e6,
      stateHash: outcome.stateHash,
    },
    ttftMs: latencyReport(outcome.ttftUs),
    tbtMs: latencyReport(outcome.tbtUs),
    load,
  };
}

function latencyReport(histogram: Histogram): LatencyReport {
  const bins = histogram.bins(binsMax).map(({ from, to, count }) => [from / 1000, (to + 1) / 1000, count] as const);
  return { ...latencyMs(histogram), count: histogram.count, bins };
}
