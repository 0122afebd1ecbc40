// A recording without the instances that left before they had reported their memory, and that no request needs.

import type { RecordedRequest, Recording, TimedReport } from './reader.ts';
import type { RecordedOutcome } from './recording.ts';

/** The recording itself if no instance is left out; otherwise the others are numbered anew. */
export function withoutUnreported(recording: Recording): Recording {
  const { instances, requests, steps, reports } = recording;
  const named = new Set(requests.flatMap(({ recorded }) => instancesOf(recorded)));
  const kept = [...instances.keys()].filter((i) => instances[i].blocks !== undefined || named.has(i));
  if (kept.length === instances.length) return recording;
  const numbers = new Map(kept.map((old, place) => [old, place]));
  return {
    ...recording,
    instances: kept.map((i) => instances[i]),
    steps: kept.map((i) => steps[i]),
    reports: kept.map((i) => reports[i].map((report) => withLinksOf(report, numbers))),
    requests: requests.map((each) => renumbered(each, numbers)),
  };
}

/** Links to instances that are left out are dropped. */
function withLinksOf(report: TimedReport, numbers: ReadonlyMap<number, number>): TimedReport {
  const { state } = report;
  if (state?.links === undefined) return report;
  const links = state.links.flatMap(([to, rate]) => {
    const number = numbers.get(to);
    return number === undefined ? [] : [[number, rate] as const];
  });
  return { ...report, state: { ...state, links } };
}

function instancesOf({ instance, decodeInstance, fetchedFrom, group = [] }: RecordedOutcome): readonly number[] {
  return [instance, decodeInstance, fetchedFrom, ...group].filter((each) => each !== undefined);
}

/** A number that no instance has is kept. */
function renumbered({ request, recorded }: RecordedRequest, numbers: ReadonlyMap<number, number>): RecordedRequest {
  const of = (old: number): number => numbers.get(old) ?? old;
  const { instance, decodeInstance, fetchedFrom, group, candidates } = recorded;
  return {
    request,
    recorded: {
      ...recorded,
      ...(instance !== undefined && { instance: of(instance) }),
      ...(decodeInstance !== undefined && { decodeInstance: of(decodeInstance) }),
      ...(fetchedFrom !== undefined && { fetchedFrom: of(fetchedFrom) }),
      ...(group !== undefined && { group: group.map(of) }),
      ...(candidates !== undefined && { candidates: candidates.map(([i, ...rest]) => [of(i), ...rest] as const) }),
    },
  };
}
