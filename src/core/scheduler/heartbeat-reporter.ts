// The reports of an instance to conductors: when one is due, and what it says of each request.

import type { InstanceEffect } from '../protocol/effects.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { ReportedRequest } from '../protocol/instance-report.ts';
import type { RunningRequest } from './executor/executor.ts';

type Report = Extract<InstanceEffect<never>, { kind: 'report' }>;

/**
 * Reports are sent immediately, however long a step takes. Tokens are counted where a step ends, so that a run of equal steps reports the
 * same as single steps: a report says how many there were at the end of the step after the report before.
 */
export class HeartbeatReporter<S extends RunningRequest> {
  readonly #incarnation: number;
  readonly #reportUs: number | undefined;
  #nextUs = 0;
  #number = 0;
  #counting = false;

  /** @param reportUs undefined: no reports */
  constructor(incarnation: number | undefined, reportUs: number | undefined) {
    this.#incarnation = incarnation ?? 0;
    this.#reportUs = reportUs;
  }

  get nextUs(): number {
    return this.#reportUs === undefined ? Number.POSITIVE_INFINITY : this.#nextUs;
  }

  /** True when a report is due; then the next one is due after the interval. */
  takeDue(nowUs: number): boolean {
    if (this.#reportUs === undefined || nowUs < this.#nextUs) return false;
    this.#nextUs = nowUs + this.#reportUs;
    this.#counting = true;
    return true;
  }

  /** @param awaited requests of other instances for which memory is reserved @param kvEventNumber number of the last batch of KV events */
  report(live: Iterable<S>, awaited: Iterable<RequestId>, kvEventNumber: number): Report {
    const requests: ReportedRequest[] = [];
    for (const { id, reportedOutputs } of live) requests.push({ id, outputs: reportedOutputs, awaited: false });
    for (const id of awaited) requests.push({ id, outputs: 0, awaited: true });
    return {
      kind: 'report',
      report: { incarnation: this.#incarnation, number: ++this.#number, kvEventNumber, requests },
    };
  }

  /** No step runs: counts the tokens for the next report. Another instance reports those of requests with a relay. */
  count(live: Iterable<S>): void {
    if (!this.#counting) return;
    this.#counting = false;
    for (const running of live)
      if (running.started && running.relay === undefined)
        running.reportedOutputs = running.sequence.length - running.sequence.promptLength;
  }
}
