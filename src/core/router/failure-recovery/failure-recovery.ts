// What the conductor does about losses: instances that fall silent, tries that nobody has, requests that take too long.

import type { ConductorEffect } from '../../protocol/effects.ts';
import type { ConductorEvent } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { InstanceReport } from '../../protocol/instance-report.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import type { Refusal } from '../../protocol/refusals.ts';
import { attemptName, heardFrom, isLegOf, type RetryConfig, speaksFor, type Tracked } from '../attempts.ts';
import type { RequestRouter } from '../request-router.ts';

type MembershipEvent<Request> = Extract<
  ConductorEvent<Request>,
  { kind: 'instanceLost' | 'instanceJoined' | 'report' | 'released' | 'wake' }
>;

/** The conductor, as its rescue sees it. */
interface Owner<Request> {
  readonly push: (effect: ConductorEffect<Request>) => void;
  /** Its last event; nobody has anything of it. */
  readonly end: (nowUs: number, tracked: Tracked<Request>, event: GenerationEvent) => void;
}

const stopped = 'the instance stopped';

/**
 * Instances report at equal distances which requests they have. From that follows everything else: what nobody reports was lost and is tried
 * elsewhere, what is reported and not wanted is cancelled, who does not report is gone.
 */
export class FailureRecovery<Request extends { readonly id: RequestId }> {
  readonly #retries: RetryConfig<Request> | undefined;
  readonly #dispatch: RequestRouter<Request>;
  readonly #requests: ReadonlyMap<RequestId, Tracked<Request>>;
  readonly #owner: Owner<Request>;
  #lookUs = 0;

  constructor(
    retries: RetryConfig<Request> | undefined,
    dispatch: RequestRouter<Request>,
    requests: ReadonlyMap<RequestId, Tracked<Request>>,
    owner: Owner<Request>,
  ) {
    this.#retries = retries;
    this.#dispatch = dispatch;
    this.#requests = requests;
    this.#owner = owner;
  }

  get nextUs(): number {
    return this.#retries?.patience === undefined ? Number.POSITIVE_INFINITY : this.#lookUs;
  }

  hear(nowUs: number, event: MembershipEvent<Request>): void {
    switch (event.kind) {
      case 'instanceLost':
        if (this.#dispatch.watch.isUp(event.instance)) this.#lose(nowUs, event.instance);
        else this.#ignore(`instanceLost: instance ${event.instance} is unknown or lost already`);
        break;
      case 'instanceJoined':
        this.#join(nowUs, event);
        break;
      case 'report':
        this.#report(nowUs, event.instance, event.report);
        break;
      case 'released': {
        const tracked = this.#dispatch.find(event.id, event.instance);
        if (tracked === undefined) this.#dispatch.fate(event.id, 'released');
        else this.#retry(nowUs, tracked, event.why);
        break;
      }
      case 'wake':
        this.#look(nowUs);
        break;
    }
  }

  #lose(nowUs: number, instance: InstanceIndex): void {
    this.#dispatch.lose(instance);
    this.#retryAt(nowUs, instance, none);
    if (this.#retries?.patience !== undefined) return;
    for (const id of this.#dispatch.jobs.heldInVain) {
      const tracked = this.#requests.get(id);
      if (tracked !== undefined) this.#fail(nowUs, tracked, stopped);
    }
  }

  /** What was tried there is gone, but for `kept`. */
  #retryAt(nowUs: number, instance: InstanceIndex, kept: ReadonlySet<RequestId>): void {
    for (const tracked of [...this.#requests.values()]) {
      const { now } = tracked;
      if (now !== undefined && isLegOf(now, instance) && !kept.has(now.id)) this.#retry(nowUs, tracked, stopped);
    }
  }

  /** An instance is there, with nothing that is known. */
  #join(
    nowUs: number,
    { instance, incarnation, capacityTokens, role }: Extract<MembershipEvent<Request>, { kind: 'instanceJoined' }>,
  ): void {
    if (!this.#dispatch.watch.join(nowUs, instance, incarnation)) {
      this.#ignore(`instanceJoined: instance ${instance} is unknown, or its life ${incarnation} is over`);
      return;
    }
    this.#retryAt(nowUs, instance, none);
    if (role !== undefined) this.#dispatch.roles.assign(instance, role);
    this.#admit(nowUs, instance, capacityTokens);
  }

  /** What waits for an instance goes on. */
  #admit(nowUs: number, instance: InstanceIndex, capacityTokens?: number): void {
    this.#dispatch.admit(instance, capacityTokens);
    for (const tracked of [...this.#requests.values()])
      if (tracked.now === undefined && !this.#dispatch.jobs.isHeld(tracked.id)) this.#tryNext(nowUs, tracked, stopped);
  }

  #report(nowUs: number, instance: InstanceIndex, report: InstanceReport): void {
    const verdict = this.#dispatch.watch.hear(nowUs, instance, report);
    if (verdict === 'late' || verdict === 'orphan') {
      this.#dispatch.fates?.met(verdict, 'report');
      this.#ignore(
        `report: of instance ${instance}, life ${report.incarnation}, number ${report.number}: it is ${verdict}`,
      );
      return;
    }
    if (verdict === 'newborn') this.#retryAt(nowUs, instance, new Set(report.requests.map(({ id }) => id)));
    for (const { id, outputs, awaited } of report.requests) {
      const tracked = this.#dispatch.find(id, instance);
      if (tracked?.now === undefined) {
        if (this.#dispatch.over.has(id)) this.#dispatch.fates?.met('lost', 'cancel');
        else this.#dispatch.fates?.met('orphan', 'submit');
        this.#dispatch.cancelAt(instance, id, false);
        continue;
      }
      const { now, progress } = tracked;
      if (awaited) continue;
      if (heardFrom(now, instance)) now.heardUs = nowUs;
      if (instance !== speaksFor(now)) continue;
      if (outputs > 0) progress?.reach(outputs);
      if (outputs === 0 && now.decodeAt === undefined) continue;
      if (now.stage !== 'decode')
        this.#dispatch.fates?.met('lost', now.decodeAt === undefined ? 'tokens' : 'prefilled');
      this.#dispatch.decodes(nowUs, now);
    }
    if (verdict !== 'known') this.#admit(nowUs, instance);
    this.#dispatch.hearsay.catchUp(nowUs, instance, report);
  }

  /** Whoever has been silent for too long is given up. */
  #look(nowUs: number): void {
    const patience = this.#retries?.patience;
    if (patience === undefined || nowUs < this.#lookUs) return;
    const { silentUs, timeoutUs } = patience;
    this.#lookUs = nowUs + Math.ceil(Math.min(silentUs, timeoutUs) / 4);
    for (const instance of this.#dispatch.watch.silentSince(nowUs - silentUs)) {
      this.#dispatch.fates?.met('lost', 'report');
      this.#lose(nowUs, instance);
    }
    this.#dispatch.hearsay.forget(nowUs - silentUs);
    for (const tracked of [...this.#requests.values()]) {
      const { now, submittedUs, tries } = tracked;
      if (nowUs - submittedUs >= timeoutUs) {
        this.#dispatch.leave(tracked, false);
        this.#fail(nowUs, tracked, `it has not ended in time: ${timeoutUs / 1e6} s, ${tries} tries`);
      } else if (now !== undefined && nowUs - now.heardUs >= silentUs) {
        this.#dispatch.fates?.met('lost', now.stage === 'queued' ? 'submit' : 'ended');
        this.#retry(nowUs, tracked, `nothing was heard of it for ${silentUs / 1e6} s`);
      }
    }
  }

  /** Its current try came to nothing. */
  #retry(nowUs: number, tracked: Tracked<Request>, why: string): void {
    this.#dispatch.leave(tracked, false);
    const reason = tracked.progress?.ended;
    if (reason !== undefined) {
      this.#owner.end(nowUs, tracked, { kind: 'finished', reason });
    } else if (tracked.tries >= (this.#retries?.triesMax ?? 1)) {
      this.#fail(nowUs, tracked, tracked.tries === 1 ? why : `${why}: tried ${tracked.tries} times`);
    } else {
      tracked.tries++;
      this.#tryNext(nowUs, tracked, why);
    }
  }

  #tryNext(nowUs: number, tracked: Tracked<Request>, why: string): void {
    const request = tracked.progress?.resume(attemptName(tracked.id, tracked.tries));
    if (request === undefined) return;
    const proposal = this.#dispatch.proposals.of(nowUs, request);
    this.#dispatch.explain(nowUs, request.id, proposal);
    const unfit = this.#dispatch.proposals.unfit(proposal);
    if (unfit === 'nobody') {
      // With patience it waits: somebody may come.
      if (this.#retries?.patience === undefined) this.#fail(nowUs, tracked, why);
    } else if (unfit !== undefined) this.#owner.end(nowUs, tracked, unfit);
    else if (proposal.route === undefined) this.#dispatch.jobs.hold(tracked, request);
    else this.#dispatch.go(nowUs, tracked, request, proposal);
  }

  #fail(nowUs: number, tracked: Tracked<Request>, why: string): void {
    const message = `Cannot generate: ${why}`;
    const event: Refusal = { kind: 'failed', code: 'ENGINE_FAILED', message, retryAfterMs: undefined };
    this.#owner.end(nowUs, tracked, event);
  }

  #ignore(message: string): void {
    this.#owner.push({ kind: 'ignored', message: `Ignored ${message}` });
  }
}

const none: ReadonlySet<RequestId> = new Set();
