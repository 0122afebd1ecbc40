// Outcomes by SLO class and by tenant.
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { Histogram } from './histogram.ts';

/** Further names count together, under `others`. */
const groupsMax = 32;
const others = 'others';

/** Times of a completed request. */
export interface RequestTimes {
  readonly ttftUs: number;
  readonly tbtUs: number;
  readonly completionUs: number;
}

export class Group {
  requests = 0;
  completed = 0;
  refused = 0;
  withinSlo = 0;
  /** Completed requests beyond their SLO, by metric. */
  readonly late = { ttft: 0, tbt: 0, completion: 0 };
  inputTokens = 0;
  outputTokens = 0;
  readonly ttftUs = new Histogram();
  readonly tbtUs = new Histogram();

  addCompleted({ slo, trace }: LengthRequest, { ttftUs, tbtUs, completionUs }: RequestTimes): void {
    this.requests++;
    this.completed++;
    this.inputTokens += trace.inputTokens;
    this.outputTokens += trace.outputTokens;
    this.ttftUs.add(ttftUs);
    if (trace.outputTokens > 1) this.tbtUs.add(tbtUs);
    if (slo !== undefined && ttftUs > slo.ttftUs) this.late.ttft++;
    if (slo !== undefined && tbtUs > slo.tbtUs) this.late.tbt++;
    if (slo !== undefined && completionUs > slo.completionUs) this.late.completion++;
    if (inTime(slo, { ttftUs, tbtUs, completionUs })) this.withinSlo++;
  }

  addRefused(): void {
    this.requests++;
    this.refused++;
  }
}

export function inTime(slo: LengthRequest['slo'], { ttftUs, tbtUs, completionUs }: RequestTimes): boolean {
  return slo === undefined || (ttftUs <= slo.ttftUs && tbtUs <= slo.tbtUs && completionUs <= slo.completionUs);
}

/** By name, in the order of first use; the number of groups is bounded. */
export class Groups {
  readonly all = new Map<string, Group>();

  of(name: string): Group {
    const known = this.all.get(name);
    if (known !== undefined) return known;
    if (this.all.size >= groupsMax && name !== others) return this.of(others);
    const group = new Group();
    this.all.set(name, group);
    return group;
  }
}
