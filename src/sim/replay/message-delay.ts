// The times that messages between the gateway and instances took, from recorded requests and steps.

import type { RecordedRequest, TimedRecordedStep } from '../../trace/recording/reader.ts';

/** Medians in microseconds; 0 without observations. */
export interface MessageDelays {
  /** From the arrival of a request at the gateway to the first step of an instance that was idle. */
  readonly toInstanceUs: number;
  /** From the end of a prefill to its report at the gateway. */
  readonly deliveryUs: number;
}

/** @param steps (instances): by time */
export function messageDelays(
  requests: readonly RecordedRequest[],
  steps: readonly (readonly TimedRecordedStep[])[],
): MessageDelays {
  const [toInstance, delivery]: [number[], number[]] = [[], []];
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
    if (last >= 0) delivery.push(reportedUs - endOf(own[last]));
  }
  return { toInstanceUs: median(toInstance), deliveryUs: median(delivery) };
}

function endOf({ startedUs, us }: TimedRecordedStep): number {
  return startedUs + us;
}

/** Index of the first step that starts at `atUs` or later. */
function firstAfter(steps: readonly TimedRecordedStep[], atUs: number): number {
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
