// Predicted wait of a new prefill on each instance, by priority and tenant, corrected by how long recent prefills took.

import { exactExp } from '../../../util/exact-math.ts';
import type { LaterPrefills } from '../admission/tbt-beside.ts';

/** A prefill below all others. */
const lowest: PrefillRank = { priority: Number.NEGATIVE_INFINITY, tenant: '' };
/** A prefill of the priority of most requests, where tenants are not distinguished. */
const unranked: PrefillRank = { priority: 0, tenant: '' };
const none: readonly never[] = [];
/** Predicted work of the prior: an instance starts out as fast as predicted. */
const priorUs = 1e6;
/** Share of the earlier observations that remains after each prefill. */
const decay = 0.95;
/** Arrivals of a priority are averaged over this time. */
const arrivalUs = 20e6;
/** Largest share of the time that later prefills of higher priority are expected to take. */
const laterShareMax = 0.9;
/** Priorities without a pending prefill that are remembered, and tenants of a priority. */
const idleClassesMax = 16;

/** What orders prefills: larger priorities first, tenants of one priority in turns. */
export interface PrefillRank {
  readonly priority: number;
  readonly tenant: string;
}

/** Predicted work of one priority and tenant that other conductors sent. */
interface OtherWork {
  readonly priority: number;
  /** Undefined: of several tenants, or unknown. */
  readonly tenant?: string | undefined;
  readonly prompts: number;
  readonly workUs: number;
}

/** (instances): pending prefills and their predicted work. */
interface PendingWork {
  readonly workUs: Float64Array;
  readonly pending: Int32Array;
  /** Prefills of all instances. */
  pendingCount: number;
}

/** The prefills of one priority. */
interface PriorityClass extends PendingWork {
  readonly priority: number;
  /** The part of each tenant. */
  readonly tenants: Map<string, PendingWork>;
  /** (instances): start of the prefill of this priority that runs, as far as it is reported. */
  readonly sinceUs: Float64Array;
  /** Decayed sum of the work that was sent, and number of prefills, at `sentAtUs`. */
  sentUs: number;
  sentPrefills: number;
  sentAtUs: number;
}

/**
 * The work of an instance is the predicted time of its prefills that have not ended. The time from the end of one prefill to the end of the
 * next also contains decode steps, waits for memory and prediction errors. The ratio of this time to the prediction, over recent prefills,
 * scales the remaining work. A prefill waits for those of its own and of higher priorities: the instance interrupts lower ones after a step.
 * Tenants of one priority share an instance fairly (`FairShares`): of another tenant, a prefill waits for one prefill more than for those of
 * its own tenant.
 */
export class PrefillQueues {
  /** Highest priority first. */
  #classes: PriorityClass[] = [];
  readonly #instances: number;
  /** Longest step, which ends before a prefill of higher priority starts. */
  readonly #stepUs: () => number;
  readonly #pending: Int32Array;
  /** (instances): prefills of other conductors. */
  readonly #others: (readonly OtherWork[])[];
  /** (instances): prefills whose start was reported, and the time of the last start. */
  readonly #running: Int32Array;
  readonly #startedUs: Float64Array;
  /** (instances): start of the running prefill of any priority. */
  readonly #sinceUs: Float64Array;
  /** (instances): time of prefills of lower priority before a higher one interrupted them. */
  readonly #interruptedUs: Float64Array;
  /** (instances): decayed sums of observed and of predicted times. */
  readonly #tookUs: Float64Array;
  readonly #predictedUs: Float64Array;

  constructor(instances: number, stepUs: () => number = () => 0) {
    this.#instances = instances;
    this.#stepUs = stepUs;
    this.#pending = new Int32Array(instances);
    this.#others = Array.from({ length: instances }, () => []);
    this.#running = new Int32Array(instances);
    this.#startedUs = new Float64Array(instances);
    this.#sinceUs = new Float64Array(instances);
    this.#interruptedUs = new Float64Array(instances);
    this.#tookUs = new Float64Array(instances).fill(priorUs);
    this.#predictedUs = new Float64Array(instances).fill(priorUs);
  }

  /** (instances): prefills that have not ended. */
  get pending(): ArrayLike<number> {
    return this.#pending;
  }

  #classOf(priority: number): PriorityClass {
    const known = this.#classes.find((each) => each.priority === priority);
    if (known !== undefined) return known;
    const idle = this.#classes.filter(({ pendingCount }) => pendingCount === 0);
    if (idle.length > idleClassesMax) this.#classes = this.#classes.filter((each) => !idle.includes(each));
    const created: PriorityClass = {
      ...{ priority, ...this.#nothing(), tenants: new Map() },
      sinceUs: new Float64Array(this.#instances),
      ...{ sentUs: 0, sentPrefills: 0, sentAtUs: 0 },
    };
    this.#classes.push(created);
    this.#classes.sort((a, b) => b.priority - a.priority);
    return created;
  }

  #nothing(): PendingWork {
    const { length } = this.#pending;
    return { workUs: new Float64Array(length), pending: new Int32Array(length), pendingCount: 0 };
  }

  /** Prefills of other conductors that have not ended on the instance, by its latest report. */
  setOthers(instance: number, others: readonly OtherWork[]): void {
    this.#others[instance] = others;
  }

  /** A prefill was sent. */
  add(nowUs: number, instance: number, predictedUs: number, { priority, tenant }: PrefillRank = unranked): void {
    const priorityClass = this.#classOf(priority);
    const own = priorityClass.tenants.get(tenant) ?? this.#nothing();
    priorityClass.tenants.set(tenant, own);
    if (this.#pending[instance] === 0) this.#sinceUs[instance] = nowUs;
    if (priorityClass.pending[instance] === 0) priorityClass.sinceUs[instance] = nowUs;
    this.#pending[instance]++;
    for (const each of [priorityClass, own]) {
      each.pending[instance]++;
      each.pendingCount++;
      each.workUs[instance] += predictedUs;
    }
    const remains = remainingShare(priorityClass, nowUs);
    priorityClass.sentUs = priorityClass.sentUs * remains + predictedUs;
    priorityClass.sentPrefills = priorityClass.sentPrefills * remains + 1;
    priorityClass.sentAtUs = nowUs;
  }

  /** A pending prefill has started, until `stopped`. */
  started(nowUs: number, instance: number): void {
    this.#running[instance]++;
    this.#startedUs[instance] = nowUs;
  }

  /** A started prefill has ended or was cancelled. */
  stopped(instance: number): void {
    this.#running[instance]--;
  }

  /** The cached part of a pending prompt differs from the prediction. */
  correct(instance: number, beforeUs: number, afterUs: number, { priority, tenant }: PrefillRank = unranked): void {
    const priorityClass = this.#classOf(priority);
    priorityClass.workUs[instance] += afterUs - beforeUs;
    const own = priorityClass.tenants.get(tenant);
    if (own !== undefined) own.workUs[instance] += afterUs - beforeUs;
  }

  /** A prefill has ended. @param readyUs when its prefix was there: it could not start before */
  end(nowUs: number, instance: number, predictedUs: number, readyUs: number, rank: PrefillRank = unranked): void {
    let tookUs = Math.max(0, nowUs - Math.max(this.#sinceUs[instance], readyUs));
    if (this.#interrupts(instance, rank.priority)) {
      this.#interruptedUs[instance] += Math.max(0, Math.min(nowUs, readyUs) - this.#sinceUs[instance]);
    } else {
      tookUs += this.#interruptedUs[instance];
      this.#interruptedUs[instance] = 0;
    }
    // Beside prefills of other conductors, the time is not that of this prefill: it counts as predicted.
    const observedUs = this.#others[instance].length === 0 ? tookUs : predictedUs;
    this.#tookUs[instance] = this.#tookUs[instance] * decay + observedUs;
    this.#predictedUs[instance] = this.#predictedUs[instance] * decay + predictedUs;
    this.#sinceUs[instance] = nowUs;
    for (const each of this.#classes) each.sinceUs[instance] = nowUs;
    this.remove(instance, predictedUs, rank);
  }

  /** True if a prefill of lower priority waits for those of this one. */
  #interrupts(instance: number, priority: number): boolean {
    return this.#classes.some((each) => each.priority < priority && each.pending[instance] > 0);
  }

  /**
   * The share of a group member has ended. Its own time is not observable, since members wait for one another. It counts as predicted, and
   * not in the time of the next prefill that ends on this instance.
   */
  endShare(instance: number, predictedUs: number, rank: PrefillRank = unranked): void {
    this.#sinceUs[instance] += predictedUs;
    for (const each of this.#classes) each.sinceUs[instance] += predictedUs;
    this.remove(instance, predictedUs, rank);
  }

  /** A pending prefill is cancelled. */
  remove(instance: number, predictedUs: number, { priority, tenant }: PrefillRank = unranked): void {
    const priorityClass = this.#classOf(priority);
    this.#pending[instance]--;
    if (this.#pending[instance] === 0) this.#interruptedUs[instance] = 0;
    subtract(priorityClass, instance, predictedUs);
    const own = priorityClass.tenants.get(tenant);
    if (own === undefined) return;
    subtract(own, instance, predictedUs);
    if (own.pendingCount === 0 && priorityClass.tenants.size > idleClassesMax) priorityClass.tenants.delete(tenant);
  }

  /** Observed over predicted time of recent prefills. */
  slowness(instance: number): number {
    return this.#tookUs[instance] / this.#predictedUs[instance];
  }

  /**
   * Writes the predicted wait of a prefill that arrives now: (instances) microseconds. Prefills of higher priority that arrive during the wait
   * lengthen it by their share of the time (Cobham, 1954).
   * @param rank of the prefill; undefined: it is below all others
   * @param up (instances): 1 for those that compute prompts; undefined: all
   * @param others prefills of other conductors count too
   */
  predict(nowUs: number, out: Float64Array, rank: PrefillRank = lowest, up?: Uint8Array, others = true): void {
    const { priority } = rank;
    const laterShare = this.#laterShare(nowUs, priority, up);
    for (let i = 0; i < out.length; i++) {
      const otherWorks = others ? this.#others[i] : none;
      if (this.#pending[i] === 0 && otherWorks.length === 0) {
        out[i] = 0;
        continue;
      }
      const slowness = this.slowness(i);
      out[i] = this.#waitUs(i, nowUs, slowness, priority);
      let lowerUs = 0;
      for (const other of otherWorks)
        if (other.priority >= priority) out[i] += slowness * other.workUs;
        else lowerUs += other.workUs;
      // The step of a lower priority that runs.
      if (out[i] === 0) out[i] = Math.min(this.#stepUs(), lowerUs);
      else out[i] = Math.max(0, out[i] - slowness * this.#laterTurnsUs(i, rank, otherWorks));
      if (laterShare > 0) out[i] /= 1 - Math.min(laterShareMax, slowness * laterShare);
    }
  }

  /** Expected duration of a prefill of this priority over its duration without later prefills of higher priorities. */
  stretch(nowUs: number, instance: number, priority: number, up?: Uint8Array): number {
    return 1 / (1 - Math.min(laterShareMax, this.slowness(instance) * this.#laterShare(nowUs, priority, up)));
  }

  /** Recent arrivals of this conductor at one of the `up` instances, and their mean work. */
  arrivals(nowUs: number, up: Uint8Array): LaterPrefills {
    let [workUs, prefills] = [0, 0];
    for (const each of this.#classes) {
      const remains = remainingShare(each, nowUs);
      workUs += each.sentUs * remains;
      prefills += each.sentPrefills * remains;
    }
    const instances = Math.max(
      1,
      up.reduce((sum, each) => sum + each, 0),
    );
    const perUs = prefills / arrivalUs / instances;
    return { perUs, workUs: prefills === 0 ? 0 : workUs / prefills };
  }

  #waitUs(instance: number, nowUs: number, slowness: number, priority: number): number {
    let workUs = 0;
    let doneUs: number | undefined;
    for (let c = 0; c < this.#classes.length; c++) {
      const each = this.#classes[c];
      const pending = each.pending[instance];
      if (pending === 0) continue;
      // The step of a lower priority that runs when none of a higher one is pending.
      if (each.priority < priority)
        return workUs === 0 ? Math.min(this.#stepUs(), each.workUs[instance]) : slowness * workUs - (doneUs ?? 0);
      workUs += each.workUs[instance];
      // The running prefill has done at most its share of the work, however long it has been delayed.
      doneUs ??= Math.max(
        0,
        Math.min(nowUs - this.#runsSince(instance, each), (slowness * each.workUs[instance]) / pending),
      );
    }
    return slowness * workUs - (doneUs ?? 0);
  }

  /** Work of other tenants that starts after a prefill which arrives now, of the same priority. */
  #laterTurnsUs(instance: number, { priority, tenant }: PrefillRank, others: readonly OtherWork[]): number {
    const known = this.#classes.find((each) => each.priority === priority)?.tenants;
    const isAlone = known === undefined || (known.size === 1 && known.has(tenant));
    if (isAlone && others.length === 0) return 0;
    const works = new Map<string, { workUs: number; prefills: number }>();
    const add = (of: string, workUs: number, prefills: number): void => {
      const sum = works.get(of) ?? { workUs: 0, prefills: 0 };
      works.set(of, { workUs: sum.workUs + workUs, prefills: sum.prefills + prefills });
    };
    for (const [of, { workUs, pending }] of known ?? none) add(of, workUs[instance], pending[instance]);
    for (const other of others)
      if (other.priority === priority && other.tenant !== undefined) add(other.tenant, other.workUs, other.prompts);
    const ownUs = works.get(tenant)?.workUs ?? 0;
    works.delete(tenant);
    let laterUs = 0;
    for (const { workUs, prefills } of works.values())
      if (prefills > 0) laterUs += Math.max(0, workUs - ownUs - workUs / prefills);
    return laterUs;
  }

  /** Beside prefills of other conductors, a pending prefill may wait for those: it runs from its reported start on. */
  #runsSince(instance: number, { sinceUs }: PriorityClass): number {
    if (this.#others[instance].length === 0) return sinceUs[instance];
    return this.#running[instance] === 0
      ? Number.POSITIVE_INFINITY
      : Math.max(sinceUs[instance], this.#startedUs[instance]);
  }

  /** Share of an instance's time that prefills above this priority take, by the arrivals of recent ones. */
  #laterShare(nowUs: number, priority: number, up?: Uint8Array): number {
    if (priority === Number.NEGATIVE_INFINITY) return 0;
    let workUs = 0;
    for (const each of this.#classes) {
      if (each.priority <= priority) break;
      workUs += each.sentUs === 0 ? 0 : each.sentUs * remainingShare(each, nowUs);
    }
    if (workUs === 0) return 0;
    let computing = 0;
    for (let i = 0; i < this.#instances; i++) computing += up?.[i] ?? 1;
    return workUs / arrivalUs / Math.max(1, computing);
  }
}

/** Share of the sums of what was sent that is left now. */
function remainingShare({ sentAtUs }: PriorityClass, nowUs: number): number {
  return exactExp(Math.max(-30, (sentAtUs - nowUs) / arrivalUs));
}

function subtract(from: PendingWork, instance: number, predictedUs: number): void {
  from.pending[instance]--;
  from.pendingCount--;
  from.workUs[instance] = from.pending[instance] === 0 ? 0 : from.workUs[instance] - predictedUs;
}
