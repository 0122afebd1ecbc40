// The simulated cluster of a recording: its instances with their roles, memory, tiers and reported step times.

import type { KvSizes } from '../../../core/cost/linear-cost.ts';
import { RecordedSteps } from '../../../core/cost/recorded-steps.ts';
import type { StepCostModel } from '../../../core/cost/roofline.ts';
import { LearnedTransfers } from '../../../core/router/placement/learned-transfers.ts';
import { PrefillObserver } from '../../../core/router/placement/prefill-observer.ts';
import { batchLimitsWith } from '../../../core/scheduler/executor/token-limits.ts';
import { heartbeatMs } from '../../../runtime/processes/peer-session.ts';
import { LearnedCost } from '../../../sim/engine/learned-cost.ts';
import type { InstanceSpec, SimulationConfig } from '../../../sim/engine/simulation.ts';
import type { LearnedState, RecordedHeartbeat } from '../../../sim/engine/simulation-config.ts';
import { messageDelays } from '../../../sim/replay/message-delay.ts';
import { recordedTimes, usualTimes } from '../../../sim/replay/message-times.ts';
import { fittedSteps, withGaps } from '../../../sim/replay/step-times.ts';
import {
  isOfEngines,
  type Recording,
  type TimedRecordedStep,
  type TimedReport,
} from '../../../trace/recording/reader.ts';
import type { ReportedState } from '../../../trace/recording/recording.ts';
import { admissionSettings } from '../../options/slo-options.ts';
import { UsageError } from '../../usage-error.ts';
import type { ReplaySettings } from './replay-settings.ts';
import { replayedEngines } from './replayed-engines.ts';
import { withRecordedLending } from './replayed-lending.ts';

/** What live predictors assume before the first transfer and the first SSD read. */
const bytesPerSecondGuess = 2e9;
const ssdBytesPerSecondGuess = 1e9;
/** Between processes, a prompt may be handed off this much earlier or later than in the recording. */
export const matchedWithinUs = 100_000;
/** Processes report what they have learned in heartbeats. */
const heartbeatUs = heartbeatMs * 1000;
/** Rows between members of a group are 32-bit floats. */
const activationBytes = 4;

type Replayed = RecordedSteps<TimedRecordedStep>;

interface StepClock {
  readonly nowUs: () => number;
  readonly onRecordedSteps: (steps: Replayed) => void;
}

/**
 * @param nowUs the time of the simulation
 * @param onRecordedSteps receives the recorded steps of each instance, which count how many of them match
 * @throws UsageError if the recording lacks what the simulator requires
 */
export function replayedCluster(
  recording: Recording,
  settings: ReplaySettings,
  nowUs: () => number,
  onRecordedSteps: (steps: Replayed) => void = () => {},
): SimulationConfig {
  const { header, instances, requests } = recording;
  if (requests.length === 0) throw new UsageError('Cannot replay: the recording holds no request');
  if (instances.every(({ role }) => role === 'store'))
    throw new UsageError('Cannot replay: no instance had reported itself when the recording ended');
  const delays = messageDelays(requests, recording.steps);
  // Where the recording has when instances received requests, steps follow one another without gaps, but for waits for borrowed memory.
  const isGapless = !settings.borrow && requests.some(({ recorded }) => recorded.receivedMs !== undefined);
  const busy = isGapless
    ? recording
    : { ...recording, steps: recording.steps.map((own, i) => withGaps(own, i, requests)) };
  const replayed: Replayed[] = [];
  const specs = instances.map((_, i) => {
    const onOwnSteps = (own: Replayed): void => {
      replayed[i] = own;
      onRecordedSteps(own);
    };
    return specOf(i, busy, settings, { nowUs, nicUs: delays.deliveryUs, onRecordedSteps: onOwnSteps });
  });
  const learned = {
    prefills: new PrefillObserver(instances.map((_, i) => (settings.processes ? i : 0))),
    transfers: new LearnedTransfers(instances.length, header.kvTokenBytes),
    steps: instances.map((_, i) => new LearnedCost(sizesOf(i, recording))),
  };
  // Batch jobs are sent when others end: the simulator has no message times for them.
  const hasJobs = requests.some(({ request }) => request.batch === true);
  const ofEngines = isOfEngines(recording);
  const times = ofEngines ? usualTimes(delays) : recordedTimes(requests, busy.steps, replayed, delays);
  const heartbeats = {
    nextReportUs: (atUs: number, i: number) => nextReportAfter(recording.reports[i], atUs),
    ...(settings.stepTimes === 'recorded' && { heartbeats: recordedHeartbeats(recording) }),
  };
  return {
    ...(ofEngines ? replayedEngines(recording, settings, specs) : withRecordedLending(recording, settings, specs)),
    linkBytesPerSecond: undefined,
    blockTokens: header.blockTokens,
    queueMax: settings.queue,
    placement: {
      ...{ kind: 'cache-aware', seed: [0, 0], balancingThreshold: settings.balancingThreshold },
      copiesHotPrefixes: settings.copyHotPrefixes,
    },
    admission: admissionSettings(settings),
    ...(!ofEngines && { learned }),
    threads: hasJobs || settings.check ? undefined : { ...times, ...(settings.processes && heartbeats) },
    checking: settings.check,
  };
}

/** The next recorded one; without any, or after the last, one every heartbeat. @param reports by time */
function nextReportAfter(reports: readonly TimedReport[], nowUs: number): number {
  let [from, to] = [0, reports.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (reports[middle].receivedUs <= nowUs) from = middle + 1;
    else to = middle;
  }
  return reports[from]?.receivedUs ?? (Math.floor(nowUs / heartbeatUs) + 1) * heartbeatUs;
}

/** What instances reported while requests ran; none in recordings of earlier releases, whose instances report what they learn in the replay. */
function recordedHeartbeats({ reports, requests }: Recording): readonly (readonly RecordedHeartbeat[])[] {
  const endUs = requests.reduce(
    (most, { request, recorded }) => Math.max(most, request.arrivalUs + recorded.endMs * 1000),
    0,
  );
  return reports.map((own) =>
    own.flatMap(({ receivedUs, state }) =>
      state === undefined || receivedUs > endUs ? [] : [{ receivedUs, state: learnedState(state) }],
    ),
  );
}

function learnedState({
  sentBytes,
  sentSeconds,
  ssdReadBytes,
  ssdReadSeconds,
  links,
  ...state
}: ReportedState): LearnedState {
  const sent = sentBytes === undefined ? {} : { sent: { bytes: sentBytes, copySeconds: sentSeconds ?? 0 } };
  const tiers =
    ssdReadBytes === undefined ? {} : { tiers: { moved: { ssdReadBytes, ssdReadSeconds: ssdReadSeconds ?? 0 } } };
  const rates = links?.map(([to, bytesPerSecond]) => ({ to, bytesPerSecond }));
  return { ...state, ...sent, ...tiers, ...(rates && { links: rates }) };
}

function specOf(
  index: number,
  recording: Recording,
  settings: ReplaySettings,
  { nicUs, ...clock }: StepClock & { readonly nicUs: number },
): InstanceSpec {
  const { header, instances } = recording;
  const instance = instances[index];
  const { name, role, blocks, receiveBlocks = 0, hostBlocks = 0, ssdBlocks = 0 } = instance;
  const { blockTokens } = header;
  if (blocks === undefined) throw new UsageError(`Cannot replay: instance ${name} reported no KV blocks`);
  const { ssdBytesPerSecond = ssdBytesPerSecondGuess } = instance;
  return {
    role,
    nic: { bytesPerSecond: instance.bytesPerSecond ?? bytesPerSecondGuess, us: nicUs },
    ssd:
      ssdBlocks === 0 ? undefined : { readBytesPerSecond: ssdBytesPerSecond, writeBytesPerSecond: ssdBytesPerSecond },
    machine: {
      ...{ blockTokens, blocks, eviction: settings.eviction, pinShare: settings.pinMemory },
      cost: costOf(index, recording, settings, clock),
      limits: batchLimitsWith(settings.stepMs && settings.stepMs * 1000),
      ...{ coalesce: false, reportsAll: true, learns: true, aheadOfUse: true },
      handOff: {
        ...{ layerWise: true, rechecksAdmission: true },
        ...{ receiveTokens: receiveBlocks * blockTokens, receivePages: receiveBlocks },
      },
      ...(hostBlocks + ssdBlocks > 0 && { tiers: { hostBlocks, ssdBlocks } }),
      ...(role === 'store' && { isStore: true }),
    },
  };
}

/** Recorded step times, and fitted ones for other steps. @param recording its steps contain the gaps of a busy instance */
function costOf(
  index: number,
  recording: Recording,
  { stepTimes }: ReplaySettings,
  { nowUs, onRecordedSteps }: StepClock,
): StepCostModel {
  const { instances, steps } = recording;
  // An instance that has computed nothing is taken to be as fast as another one.
  const { stepCost } = [instances[index], ...instances].find((each) => each.stepCost !== undefined) ?? {};
  if (stepCost === undefined) throw new UsageError('Cannot replay: no instance reported its step times');
  const sizes = sizesOf(index, recording);
  const own = steps[index];
  const varied = fittedSteps(own, stepCost, sizes, index);
  if (stepTimes === 'fitted') return varied;
  const times = { gapUsMax: matchedWithinUs, unrecorded: varied };
  const recorded = new RecordedSteps(own, fittedSteps(own, stepCost, sizes), nowUs, times);
  onRecordedSteps(recorded);
  return recorded;
}

function sizesOf(index: number, { header, instances }: Recording): KvSizes {
  const { layers, kvTokenBytes, heads, headDim, blockTokens } = header;
  const { blocks = 0 } = instances[index];
  return {
    ...{ layers, kvBytesPerToken: kvTokenBytes, kvCapacityTokens: blocks * blockTokens },
    activationBytesPerToken: heads * headDim * activationBytes,
  };
}
