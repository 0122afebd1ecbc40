// An instance as the conductor hears of it: when it reports, and what of its requests it tells.

import type { InstanceEffect } from '../protocol/effects.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { ReportedRequest } from '../protocol/instance-report.ts';
import type { RunningRequest } from './executor/executor.ts';

type Report = Extract<InstanceEffect<never>, { kind: 'report' }>;

/**
 * Reports go out at once, however long a step takes. Tokens are counted where a step ends, so that equal steps run in one go tell the same:
 * a report says how many there were at the step's end after the report before.
 */
export class HeartbeatReporter<S extends RunningRequest> {
  readonly #incarnation: number;
  readonly #reportUs: number | undefined;
  #nextUs = 0;
  #number = 0;
  #counting = false;

  /** @param reportUs undefined: nobody asks */
  constructor(incarnation: number | undefined, reportUs: number | undefined) {
    this.#incarnation = incarnation ?? 0;
    this.#reportUs = reportUs;
  }

  get nextUs(): number {
    return this.#reportUs === undefined ? Number.POSITIVE_INFINITY : this.#nextUs;
  }

  /** Is it time for a report? Says so once. */
  isDue(nowUs: number): boolean {
    if (this.#reportUs === undefined || nowUs < this.#nextUs) return false;
    this.#nextUs = nowUs + this.#reportUs;
    this.#counting = true;
    return true;
  }

  report(live: Iterable<S>, awaited: Iterable<RequestId>, journal: number): Report {
    const requests: ReportedRequest[] = [];
    for (const { id, told } of live) requests.push({ id, outputs: told, awaited: false });
    for (const id of awaited) requests.push({ id, outputs: 0, awaited: true });
    return { kind: 'report', report: { incarnation: this.#incarnation, number: ++this.#number, journal, requests } };
  }

  /** No step runs: counts what clients have been told of, where that is for the next report. @param leaving those for whom another speaks */
  count(requests: { readonly live: Iterable<S> }, leaving: { has(id: RequestId): boolean }): void {
    if (!this.#counting) return;
    this.#counting = false;
    for (const served of requests.live)
      if (served.started && !leaving.has(served.id))
        served.told = served.sequence.length - served.sequence.promptLength;
  }
}
