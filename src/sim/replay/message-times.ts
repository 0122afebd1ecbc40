// When messages of a replayed run arrive: at their recorded times where the replay does what was recorded, else after medians.

import { MovingBlocks } from '../../core/cost/measured-cost.ts';
import type { RecordedStep, RecordedSteps } from '../../core/cost/recorded-steps.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { RecordedRequest, TimedRecordedStep } from '../../trace/recording/reader.ts';
import type { SentTurn, ThreadTimes } from '../engine/simulation-config.ts';
import { arrivalOf, decodeStepUs, type MessageDelays } from './message-delay.ts';

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
  { stepEnded, started }: SentTurn,
  { startedUs, deliveryUs }: KnownTimes,
): number {
  const step = beganUs === nowUs ? previous : latest;
  const tokensUs = stepEnded ? step?.deliveredUs : undefined;
  return tokensUs ?? (started === undefined ? undefined : startedUs(started)) ?? nowUs + deliveryUs;
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
        return Math.max(0, arrivalOf(steps[to], stepUs, nowUs + handOffUs, () => true) - nowUs);
      },
    }),
    prefixUs: (nowUs, to, id) => {
      const sent = requests[Number(id)];
      if (sent?.recorded.instance !== to || sent.recorded.prefixMs === undefined) return undefined;
      const { prefixMs, prefixMissing } = sent.recorded;
      return Math.max(0, sent.request.arrivalUs + prefixMs * 1000 - nowUs) + (prefixMissing === true ? missingUs : 0);
    },
    receivedUs: (nowUs, instance, sent) => {
      const known = { startedUs, deliveryUs: sent.stepEnded ? drawn[instance].next() : deliveryUs };
      const own = replayed[instance];
      return own === undefined ? nowUs + known.deliveryUs : deliveredAtUs(nowUs, own, sent, known);
    },
  };
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

/** When a request reached its instance. Undefined: it was computed elsewhere, or waited for a prefix or for other members of a group. */
function submitArrivalUs(
  { request: { arrivalUs }, recorded: { instance, firstStepMs, fetchedFrom, group } }: RecordedRequest,
  steps: readonly TimedRecordedStep[],
  at: InstanceIndex,
  usualUs: number,
): number | undefined {
  if (instance !== at || firstStepMs === undefined || fetchedFrom !== undefined || group !== undefined)
    return undefined;
  return arrivalOf(steps, arrivalUs + firstStepMs * 1000, usualUs, hasNoPrompt);
}

/** A step with prompt rows may have been full. */
function hasNoPrompt({ shape: { rows, decodeRows } }: TimedRecordedStep): boolean {
  return rows === decodeRows;
}
