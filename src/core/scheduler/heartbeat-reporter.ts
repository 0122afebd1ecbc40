// Builds the reports of an instance to conductors, and decides when one is due.

import type { InstanceEffect } from '../protocol/effects.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { ReportedRequest } from '../protocol/instance-report.ts';
import type { RunningRequest } from './executor/executor.ts';

type Report = Extract<InstanceEffect<never>, { kind: 'report' }>;

/**
 * A report is sent when it is due, even while a step runs. Tokens are counted between steps, so that a step run reports the same as single
 * steps: a report has the count at the end of the first step after the previous report.
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

  /** @param expected requests of other instances with prompts that are to arrive here @param kvEventNumber number of the last batch of KV events */
  report(live: Iterable<S>, expected: Iterable<RequestId>, kvEventNumber: number): Report {
    const requests: ReportedRequest[] = [];
    for (const { id, reportedOutputs } of live) requests.push({ id, outputs: reportedOutputs, receiving: false });
    for (const id of expected) requests.push({ id, outputs: 0, receiving: true });
    return {
      kind: 'report',
      report: { incarnation: this.#incarnation, number: ++this.#number, kvEventNumber, requests },
    };
  }

  /** No step runs: counts the tokens for the next report. Requests with a relay are counted by the instance that decodes them. */
  count(live: Iterable<S>): void {
    if (!this.#counting) return;
    this.#counting = false;
    for (const running of live)
      if (running.started && running.relay === undefined)
        running.reportedOutputs = running.sequence.length - running.sequence.promptLength;
  }
}
