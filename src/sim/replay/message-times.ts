// When messages of a replayed run arrive: at their recorded times where the replay does what was recorded, else after medians.

import { MovingBlocks } from '../../core/cost/measured-cost.ts';
import type { RecordedStep, RecordedSteps } from '../../core/cost/recorded-steps.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { RecordedRequest, TimedRecordedStep } from '../../trace/recording/reader.ts';
import type { SentTurn, ThreadTimes } from '../engine/simulation-config.ts';
import { arrivalOf, decodeStepUs, firstAfter, type MessageDelays } from './message-delay.ts';

/** Of random numbers: step times of an instance take the first ones. */
const deliveryStream = 4;

/** A prefix that did not arrive in the recording arrives in the replay after its instance has given it up. */
const missingUs = 10e6;

/** A step, and when the conductor received its outputs; undefined: not known, or there were none. */
export interface DeliveredStep extends RecordedStep {
  readonly deliveredUs: number | undefined;
}

/** What is known of the messages of an instance. */
export interface KnownTimes {
  /** When the conductor received the start of a request. */
  readonly startedUs: (id: RequestId) => number | undefined;
  /** When it received the first tokens of a request, or that the prompt of one that is handed off was computed. */
  readonly firstTokensUs?: (id: RequestId) => number | undefined;
  /** From an instance to the conductor, where nothing else is known. */
  readonly deliveryUs: number;
}

/**
 * When the conductor receives what an instance sends at `nowUs`.
 * @param steps of the instance; the turn follows a step that matched a recorded one, or a later step has just begun
 */
export function deliveredAtUs(
  nowUs: number,
  { latest, previous, beganUs }: RecordedSteps<DeliveredStep>,
  { stepEnded, started, firstTokens }: SentTurn,
  { startedUs, firstTokensUs, deliveryUs }: KnownTimes,
): number {
  const step = beganUs === nowUs ? previous : latest;
  const tokensUs = stepEnded ? step?.deliveredUs : undefined;
  const handledUs = firstTokens === undefined ? undefined : firstTokensUs?.(firstTokens);
  // A busy gateway handles the outputs of a step later than it receives them.
  if (tokensUs !== undefined) return Math.max(tokensUs, handledUs ?? 0);
  // Without a step, the first tokens are those of a prompt that was handed off.
  return handledUs ?? (started === undefined ? undefined : startedUs(started)) ?? nowUs + deliveryUs;
}

/** Every message takes the median: steps of external engines are derived from their streams, so they contain HTTP and the engine's loop. */
export function usualTimes({ toInstanceUs, deliveryUs }: MessageDelays): ThreadTimes {
  return { toInstanceUs: () => toInstanceUs, receivedUs: (nowUs) => nowUs + deliveryUs };
}

/**
 * @param steps (instances): by time, each from the end of the one before where the instance was busy
 * @param replayed (instances): the steps that a replay matches; none: every step takes a time of its own
 */
export function recordedTimes(
  requests: readonly RecordedRequest[],
  steps: readonly (readonly TimedRecordedStep[])[],
  replayed: readonly RecordedSteps<TimedRecordedStep>[],
  { toInstanceUs, deliveryUs, handOffUs }: MessageDelays,
): ThreadTimes {
  const startedUs = (id: RequestId): number | undefined => {
    const { request, recorded } = requests[Number(id)] ?? {};
    return recorded?.startedMs === undefined ? undefined : request.arrivalUs + recorded.startedMs * 1000;
  };
  const firstTokensOf = (id: RequestId, at: InstanceIndex): number | undefined => {
    const { request, recorded } = requests[Number(id)] ?? {};
    if (recorded === undefined) return undefined;
    const { instance, decodeInstance = instance, prefilledMs, firstTokenMs } = recorded;
    if (at !== instance && at !== decodeInstance) return undefined;
    const ms = at === decodeInstance ? firstTokenMs : prefilledMs;
    return ms === undefined ? undefined : request.arrivalUs + ms * 1000;
  };
  const drawn = steps.map((own, i) => new DrawnDelays(own, deliveryUs, i));
  return {
    toInstanceUs: (nowUs, instance, id) => {
      const sent = id === undefined ? undefined : requests[Number(id)];
      const atUs = sent && submitArrivalUs(sent, steps[instance], instance, nowUs + toInstanceUs);
      return Math.max(0, atUs === undefined ? toInstanceUs : atUs - nowUs);
    },
    ...(handOffUs !== undefined && {
      handOffUs: (nowUs, to, id) => {
        const sent = requests[Number(id)];
        const stepUs = sent?.recorded.decodeInstance === to ? decodeStepUs(sent) : undefined;
        if (stepUs === undefined) return handOffUs;
        const { decodeReceivedMs } = sent.recorded;
        if (decodeReceivedMs !== undefined)
          return Math.max(0, sent.request.arrivalUs + decodeReceivedMs * 1000 - nowUs);
        return Math.max(0, arrivalOf(steps[to], stepUs, nowUs + handOffUs, () => true) - nowUs);
      },
    }),
    prefixUs: (nowUs, to, id) => {
      const prefix = prefixOf(requests[Number(id)], to, steps[to]);
      if (prefix === undefined) return undefined;
      const { endUs, isMissing, aheadUs } = prefix;
      // The recorded time of a step contains its wait for the prefix.
      const thereUs = aheadUs === undefined ? endUs : aheadUs + 1;
      return Math.max(0, thereUs - nowUs) + (isMissing ? missingUs : 0);
    },
    prefixBeginUs: (nowUs, to, id) => {
      const prefix = prefixOf(requests[Number(id)], to, steps[to]);
      if (prefix === undefined) return undefined;
      const { aheadUs } = prefix;
      return aheadUs === undefined ? missingUs : Math.max(0, arrivalOf(steps[to], aheadUs, nowUs, () => true) - nowUs);
    },
    receivedUs: (nowUs, instance, sent) => {
      const firstTokensUs = (id: RequestId) => firstTokensOf(id, instance);
      const known = { startedUs, firstTokensUs, deliveryUs: sent.stepEnded ? drawn[instance].next() : deliveryUs };
      const own = replayed[instance];
      return own === undefined ? nowUs + known.deliveryUs : deliveredAtUs(nowUs, own, sent, known);
    },
  };
}

/** The recorded fetch of a prefix. */
interface FetchedPrefix {
  /** When it was there, or was given up. */
  readonly endUs: number;
  readonly isMissing: boolean;
  /** Begin of the step that waited for it; undefined: the request started after the fetch had ended. */
  readonly aheadUs: number | undefined;
}

/** Undefined: the instance fetched no prefix for the request. */
function prefixOf(
  sent: RecordedRequest | undefined,
  to: InstanceIndex,
  steps: readonly TimedRecordedStep[],
): FetchedPrefix | undefined {
  if (sent?.recorded.instance !== to || sent.recorded.prefixMs === undefined) return undefined;
  const { prefixMs, prefixMissing, firstStepMs } = sent.recorded;
  const endUs = sent.request.arrivalUs + prefixMs * 1000;
  const stepUs = firstStepMs === undefined ? undefined : Math.floor(sent.request.arrivalUs + firstStepMs * 1000);
  const step = stepUs === undefined ? undefined : steps[firstAfter(steps, stepUs + 1) - 1];
  // An instance handles the end of a fetch between two steps: a step that waited for the prefix had ended by then.
  const isAhead = step !== undefined && Math.floor(step.startedUs + step.us) <= endUs;
  return { endUs, isMissing: prefixMissing === true, aheadUs: isAhead ? stepUs : undefined };
}

/** The delays of recorded steps, in stretches of their order: late deliveries occur in sequence. */
class DrawnDelays {
  readonly #delays: readonly number[];
  readonly #positions: MovingBlocks;

  constructor(steps: readonly TimedRecordedStep[], usualUs: number, seed: number) {
    const known = steps.flatMap(({ startedUs, us, deliveredUs }) =>
      deliveredUs === undefined ? [] : [Math.max(0, deliveredUs - startedUs - us)],
    );
    this.#delays = known.length > 0 ? known : [usualUs];
    this.#positions = new MovingBlocks(this.#delays.length, seed, deliveryStream);
  }

  next(): number {
    return this.#delays[this.#positions.next()];
  }
}

/** When a request reached its instance; one that fetched a prefix, when the instance requested it. Undefined: it was computed elsewhere, or waited for a prefix or for other members of a group. */
function submitArrivalUs(
  {
    request: { arrivalUs },
    recorded: { instance, receivedMs, firstStepMs, prefixStartMs, fetchedFrom, group },
  }: RecordedRequest,
  steps: readonly TimedRecordedStep[],
  at: InstanceIndex,
  usualUs: number,
): number | undefined {
  if (instance !== at || group !== undefined) return undefined;
  if (receivedMs !== undefined) return arrivalUs + receivedMs * 1000;
  if (prefixStartMs !== undefined) return arrivalUs + prefixStartMs * 1000;
  if (firstStepMs === undefined || fetchedFrom !== undefined) return undefined;
  return arrivalOf(steps, arrivalUs + firstStepMs * 1000, usualUs, hasNoPrompt);
}

/** A step with prompt rows may have been full. */
function hasNoPrompt({ shape: { rows, decodeRows } }: TimedRecordedStep): boolean {
  return rows === decodeRows;
}
