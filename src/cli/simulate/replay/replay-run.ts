// `kvasir simulate --replay`: a recording in a simulated cluster of the same kind, compared with what was recorded.

import type { RecordedSteps } from '../../../core/cost/recorded-steps.ts';
import type { PlacementTrace } from '../../../core/protocol/request-trace.ts';
import { Simulation } from '../../../sim/engine/simulation.ts';
import {
  compareReplay,
  type Percentiles,
  type PlacementDifference,
  type ReplayComparison,
} from '../../../sim/replay/comparison.ts';
import { messageDelays } from '../../../sim/replay/message-delay.ts';
import { type RequestRecord, RequestRecorder } from '../../../sim/report/request-recorder.ts';
import { engineBlockTokens, type Recording } from '../../../trace/recording/reader.ts';
import { withoutUnreported } from '../../../trace/recording/reported-instances.ts';
import { counted, percent, readable } from '../../terminal/fields.ts';
import { printList, printTable } from '../../terminal/table.ts';
import { checkOutputs } from '../outputs/output-file.ts';
import { both, RunOutputs } from '../outputs/run-outputs.ts';
import { reportOf } from '../run-figures.ts';
import { runRequests } from '../simulated-run.ts';
import { readRecording } from '../trace-file.ts';
import { type ReplayFlags, replayFlags, replaySettings } from './replay-settings.ts';
import { matchedWithinUs, replayedCluster } from './replayed-cluster.ts';

export interface Replay extends ReplayComparison {
  /** Why the file does not hold all requests, or its step times are not used. */
  readonly notes: readonly string[];
  /** Names by number. */
  readonly instances: readonly string[];
  readonly simulated: ReturnType<typeof reportOf>;
}

/** @param given flags of `kvasir simulate` @throws UsageError for flags that a replay excludes, Error for an invalid file */
export async function replayCommand(given: Readonly<Record<string, unknown>>, json: boolean): Promise<void> {
  const flags = replayFlags(given);
  const { report, loadPlot, requestsOut, timeline, recording } = flags;
  checkOutputs({ report, loadPlot, requestsOut, timeline, recording });
  const replay = await replayRecording(flags, !json);
  if (json) console.log(JSON.stringify(replay));
  else printReplay(replay);
}

export async function replayRecording(flags: ReplayFlags, showsProgress: boolean): Promise<Replay> {
  const started = performance.now();
  const asWritten = await readRecording(flags.replay);
  const blockTokens = engineBlockTokens(asWritten);
  const { isTorn, ...whole } = blockTokens === undefined ? asWritten : await readRecording(flags.replay, blockTokens);
  const recording = withoutUnreported(whole);
  const settings = replaySettings(recording, flags);
  const names = recording.instances.map(({ role, name }) => `${role} ${name}`);
  const records: RequestRecord[] = [];
  const placements = new Map<number, PlacementTrace>();
  const recordedSteps: RecordedSteps[] = [];
  const recorder = new RequestRecorder((record) => records.push(record));
  const outputs = await RunOutputs.open(flags, names, showsProgress);
  const requests = recording.requests.map(({ request }) => request);
  const simulation = await runRequests([{ requests, share: 1 }], outputs, (listeners) => {
    const nowUs = () => created.nowUs;
    const config = replayedCluster(recording, settings, nowUs, (steps) => recordedSteps.push(steps));
    const requestListener = both(both(listeners.requestListener, recorder), {
      placed: (id, placement) => placements.set(Number(id), placement),
      found: () => {},
      ended: () => {},
    });
    const created: Simulation = new Simulation({ ...config, ...listeners, requestListener });
    return created;
  });
  return {
    ...compareReplay(recording.requests, records, placements),
    notes: notesOf(recording, isTorn, recordedSteps),
    instances: names,
    simulated: reportOf(simulation.outcome, (performance.now() - started) / 1000),
  };
}

function notesOf(
  { omitted, steps, requests }: Recording,
  isTorn: boolean,
  recordedSteps: readonly RecordedSteps[],
): readonly string[] {
  const notes: string[] = [];
  if (isTorn) notes.push('The last line was not written to its end: it is left out');
  if (omitted > 0) notes.push(`The server left out ${counted(omitted, 'line')}: its disk was too slow`);
  const hasSteps = recordedSteps.length > 0 && steps.some(({ length }) => length > 0);
  if (hasSteps && recordedSteps.every(({ matched }) => matched === 0))
    notes.push('No recorded step matches: step times are fitted; the clocks of gateway and instances may differ');
  const { toInstanceUs } = messageDelays(requests, steps);
  if (toInstanceUs > matchedWithinUs)
    notes.push(
      `Instances begin ${readable(toInstanceUs / 1000)} ms after arrivals: the clocks of gateway and instances may differ`,
    );
  return notes;
}

export function printReplay({ requests, ttftMs, tbtMs, ttftRatio, tbtRatio, notes, ...replay }: Replay): void {
  const { completed, refused, hitRatioTokens, samePlacements, instances, placementDifferences } = replay;
  const row = (figure: string, run: string, { p50, p90, p99 }: Percentiles) => ({ figure, run, p50, p90, p99 });
  printTable(
    [
      row('TTFT ms', 'recorded', ttftMs.recorded),
      row('', 'simulated', ttftMs.simulated),
      row('TBT ms', 'recorded', tbtMs.recorded),
      row('', 'simulated', tbtMs.simulated),
    ],
    `Recording: ${counted(requests, 'request')} on ${counted(instances.length, 'instance')}`,
  );
  const pair = ({ recorded, simulated }: { recorded: number; simulated: number }) =>
    `${readable(recorded)} recorded, ${readable(simulated)} simulated`;
  printList('Simulated against recorded', [
    ['median TTFT', ratioText(ttftRatio)],
    ['median TBT', ratioText(tbtRatio)],
    ['same placement', `${percent(samePlacements / requests)}: ${samePlacements} of ${requests}`],
    ['completed', pair(completed)],
    ...(refused.recorded + refused.simulated > 0 ? [['refused', pair(refused)] as const] : []),
    [
      'prompt tokens hit',
      `${percent(hitRatioTokens.recorded)} recorded, ${percent(hitRatioTokens.simulated)} simulated`,
    ],
    ...placementDifferences
      .slice(0, 1)
      .map(
        ({ index, recorded, simulated }) =>
          ['first difference', `request ${index}: ${placeText(recorded)}, simulated ${placeText(simulated)}`] as const,
      ),
    ...notes.map((note) => ['note', note] as const),
  ]);
  const [first] = placementDifferences;
  if (first !== undefined && first.candidates.recorded.length > 0) printCandidates(first);
}

function printCandidates({ index, candidates }: PlacementDifference): void {
  const rows = (['recorded', 'simulated'] as const).flatMap((run) =>
    candidates[run].map(([instance, requests, matchedTokens, queueUs, prefillUs]) => ({
      ...{ run, instance, requests, matchedTokens, queueUs, prefillUs },
    })),
  );
  printTable(rows, `Request ${index}: what placement compared`);
}

function ratioText(ratio: number | undefined): string {
  return ratio === undefined ? 'no requests' : `${readable(ratio)} times the recorded one`;
}

function placeText(places: readonly (number | undefined)[]): string {
  if (places.length === 0) return 'refused';
  return `instance ${[...new Set(places)].map((place) => place ?? 'none').join(' and ')}`;
}
