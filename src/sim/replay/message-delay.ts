// The times that messages between the gateway and instances took, from recorded requests and steps.

import type { RecordedRequest, TimedRecordedStep } from '../../trace/recording/reader.ts';

/** Medians in microseconds; 0 without observations. */
export interface MessageDelays {
  /** From the arrival of a request at the gateway to the first step of an instance that was idle. */
  readonly toInstanceUs: number;
  /** From the end of a prefill to its report at the gateway. */
  readonly deliveryUs: number;
  /** From the end of a prefill to the first step of a decode instance that was idle; undefined without hand-offs. */
  readonly handOffUs: number | undefined;
}

/** @param steps (instances): by time */
export function messageDelays(
  requests: readonly RecordedRequest[],
  steps: readonly (readonly TimedRecordedStep[])[],
): MessageDelays {
  const [toInstance, delivery, handOff]: [number[], number[], number[]] = [[], [], []];
  for (const { request, recorded } of requests) {
    const { instance, prefilledMs, fetchedFrom, group } = recorded;
    // Refused, or ended before it was placed.
    if (instance === undefined) continue;
    const own = steps[instance] ?? [];
    const next = firstAfter(own, request.arrivalUs);
    const isIdle = next < own.length && (next === 0 || endOf(own[next - 1]) <= request.arrivalUs);
    if (isIdle && fetchedFrom === undefined) toInstance.push(own[next].startedUs - request.arrivalUs);
    if (prefilledMs === undefined || group !== undefined) continue;
    const reportedUs = request.arrivalUs + prefilledMs * 1000;
    let last = firstAfter(own, reportedUs) - 1;
    if (last >= 0 && endOf(own[last]) > reportedUs) last--;
    if (last < 0) continue;
    const prefilledUs = endOf(own[last]);
    delivery.push(reportedUs - prefilledUs);
    const decodes = idleStepUs(steps, { request, recorded }, prefilledUs);
    if (decodes !== undefined) handOff.push(decodes - prefilledUs);
  }
  const handOffUs = handOff.length === 0 ? undefined : median(handOff);
  return { toInstanceUs: median(toInstance), deliveryUs: median(delivery), handOffUs };
}

/** When a prompt that was handed off was first computed on, by an instance that was idle since `sinceUs` at the latest. */
function idleStepUs(
  steps: readonly (readonly TimedRecordedStep[])[],
  request: RecordedRequest,
  sinceUs: number,
): number | undefined {
  const stepUs = decodeStepUs(request);
  if (stepUs === undefined) return undefined;
  const own = steps[request.recorded.decodeInstance ?? 0] ?? [];
  const before = own[firstAfter(own, Math.floor(stepUs)) - 1];
  return before === undefined || endOf(before) <= sinceUs ? stepUs : undefined;
}

/** Begin of the first step at another instance than that of the prompt; undefined: the request was not handed off. */
export function decodeStepUs({
  request: { arrivalUs },
  recorded: { instance, decodeInstance, decodeStepMs },
}: RecordedRequest): number | undefined {
  const isHandedOff = decodeInstance !== undefined && decodeInstance !== instance && decodeStepMs !== undefined;
  return isHandedOff ? arrivalUs + decodeStepMs * 1000 : undefined;
}

/**
 * When a message arrived whose first effect is the step that began at `stepUs`. At an idle instance it is the begin of the step. At a busy one
 * it is after the usual time, but before the step was planned, and after the one before if that step would have contained it.
 * @param steps of the instance, each from the end of the one before where the instance was busy
 * @param couldContain the step would contain rows of the message if it had arrived
 */
export function arrivalOf(
  steps: readonly TimedRecordedStep[],
  stepUs: number,
  usualUs: number,
  couldContain: (step: TimedRecordedStep) => boolean,
): number {
  const at = firstAfter(steps, Math.floor(stepUs) + 1) - 1;
  const [before, step] = [steps[at - 1], steps[at]];
  if (step === undefined) return usualUs;
  if (before === undefined || endOf(before) < step.startedUs) return stepUs;
  const earliestUs = couldContain(before) ? before.startedUs + 1 : 0;
  return Math.min(Math.max(usualUs, earliestUs), endOf(before) - 1);
}

function endOf({ startedUs, us }: Pick<TimedRecordedStep, 'startedUs' | 'us'>): number {
  return startedUs + us;
}

/** Index of the first step that starts at `atUs` or later. */
export function firstAfter(steps: readonly TimedRecordedStep[], atUs: number): number {
  let [from, to] = [0, steps.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (steps[middle].startedUs < atUs) from = middle + 1;
    else to = middle;
  }
  return from;
}

function median(values: number[]): number {
  values.sort((a, b) => a - b);
  return Math.max(0, Math.round(values[values.length >> 1] ?? 0));
}
