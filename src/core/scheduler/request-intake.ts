// Requests come to an instance and leave it: taken or refused, cancelled, ended, or lost on their way to another.

import type { PipelinePrefill } from '../pipeline/pipeline-prefill.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent, PrefixFetch } from '../protocol/events.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import { contextTooLong, promptExceedsReceiveBuffer, queueFull } from '../protocol/refusals.ts';
import { promptOf } from '../protocol/request-size.ts';
import type { HandOffs } from '../transfer/hand-off/hand-offs.ts';
import type { DecodeLeg } from '../transfer/hand-off/kv-sender.ts';
import type { PrefixMoves } from '../transfer/prefix-fetch/prefix-moves.ts';
import type { DecodeCheck } from './decode-slo-check.ts';
import type { Emit, Executor, RunningRequest } from './executor/executor.ts';
import type { InstanceConfig } from './instance-config.ts';
import type { Pinning } from './pinning.ts';
import type { RequestTable } from './request-table.ts';
import type { StepLauncher } from './step-launcher.ts';
import { Throughput } from './throughput.ts';

interface Parts<Request extends { readonly id: RequestId }, S extends RunningRequest, Plan, Result>
  extends Pick<InstanceConfig, 'queueMax' | 'journalIncarnation' | 'borrowing'> {
  readonly work: Executor<Request, S, Plan, Result>;
  readonly roster: RequestTable<S>;
  readonly handOffs: HandOffs<Request, S>;
  readonly stages: PipelinePrefill<Request, S, Plan, Result>;
  readonly prefixes: PrefixMoves<Request, S>;
  readonly launcher: StepLauncher<Request, S, Plan, Result>;
  readonly pinning: Pinning<Request, S>;
  readonly check: DecodeCheck<Request, S> | undefined;
}

/** The instance, as those see it who come and leave. */
interface Owner {
  readonly emit: Emit;
  readonly ignore: (message: string, id?: RequestId, kind?: 'submit' | 'cancel') => void;
  /** For the conductor. */
  readonly say: (effect: Extract<InstanceEffect<never>, { kind: 'released' }>) => void;
  readonly nextArrival: () => number;
  readonly capacityTokens: () => number;
  /** Without bigger instances. */
  readonly ownCapacityTokens: () => number;
}

export class RequestIntake<Request extends { readonly id: RequestId }, S extends RunningRequest, Plan, Result> {
  readonly #parts: Parts<Request, S, Plan, Result>;
  readonly #owner: Owner;
  readonly #throughput = new Throughput();

  constructor(parts: Parts<Request, S, Plan, Result>, owner: Owner) {
    this.#parts = parts;
    this.#owner = owner;
  }

  submit(
    nowUs: number,
    {
      request,
      decodeAt,
      decodeIncarnation,
      prefix,
      group,
      incarnation,
    }: Extract<InstanceEvent<Request, Result>, { kind: 'submit' }>,
  ): void {
    const { id } = request;
    const { roster, work, queueMax, journalIncarnation } = this.#parts;
    const isKnown = roster.has(id) || roster.hasLeft(id);
    if (isKnown || (incarnation !== undefined && incarnation !== journalIncarnation)) {
      const why = isKnown ? 'was here before' : `is meant for life ${incarnation}`;
      this.#owner.ignore(`submit: request ${id} ${why}`, id, 'submit');
      return;
    }
    const accepted = roster.size;
    const whole = work.size(request);
    const size = decodeAt === undefined ? whole : promptOf(whole);
    // A bigger instance goes on with what was begun here: the prompt and a token more are to fit.
    const beginsHere = size.promptTokens < this.#owner.ownCapacityTokens();
    const refusal =
      contextTooLong(size, beginsHere ? this.#owner.capacityTokens() : this.#owner.ownCapacityTokens()) ??
      (accepted >= queueMax
        ? queueFull(accepted, queueMax, this.#throughput.retryAfterMs(nowUs, accepted))
        : undefined);
    this.#owner.emit(request.id, refusal ?? { kind: 'accepted' });
    if (refusal !== undefined) return;
    const first = this.#parts.borrowing?.handsOver;
    const decode = decodeAt === undefined ? undefined : { to: decodeAt, incarnation: decodeIncarnation, first };
    if (group === undefined) this.serve(request, decode, prefix);
    else this.#parts.stages.lead(request, group);
  }

  /** It waits for its turn. */
  serve(request: Request, decode?: DecodeLeg, prefix?: PrefixFetch): void {
    const served = this.#parts.work.serve(request, this.#owner.nextArrival());
    if (decode !== undefined) this.#parts.handOffs.departures.add(request, served, decode);
    this.#parts.roster.take(served);
    this.#parts.prefixes.want(served, prefix);
  }

  /** Another instance has it, or could never take it (`declined`). */
  settled(served: S, declined: boolean): void {
    this.#parts.stages.drop(served.id);
    this.#parts.prefixes.loads.drop(served);
    this.#parts.roster.silence(served.id);
    if (declined) this.#owner.emit(served.id, promptExceedsReceiveBuffer(served.sequence.promptLength));
    if (served.sequence.planned > 0) served.cancelled = true;
    else this.#parts.roster.remove(served, false);
  }

  /** It cannot leave: somebody else may have it. */
  broken({ to, id, passes }: Extract<InstanceEvent<Request, Result>, { kind: 'streamBroken' }>): void {
    const served = this.#parts.handOffs.broken(to, id) ?? this.#parts.stages.broken(to, id);
    if (served !== undefined) this.settled(served, false);
    else if (passes !== true) this.#owner.ignore(`streamBroken: request ${id} does not leave here`);
    if (served === undefined && passes !== true) return;
    this.#owner.say({ kind: 'released', id, why: `the connection to instance ${to} broke` });
  }

  /** Nobody wants it any more. */
  cancel(nowUs: number, id: RequestId): void {
    const { roster, handOffs, stages, prefixes, launcher } = this.#parts;
    const served = roster.get(id);
    const landing = handOffs.drop(id);
    stages.drop(id);
    if (served === undefined) {
      if (!landing) this.#owner.ignore(`cancel: request ${id} is not live`, id, 'cancel');
      roster.bar(id);
      return;
    }
    roster.silence(id);
    prefixes.loads.drop(served);
    served.cancelled = true;
    if (!launcher.drop(nowUs, served)) roster.remove(served, false);
  }

  /** Its last event; with `forget` its blocks leave the cache. */
  end(nowUs: number, served: S, event: GenerationEvent, forget: boolean): void {
    const { roster, handOffs, stages, pinning, check, prefixes } = this.#parts;
    this.#throughput.ended(nowUs);
    stages.drop(served.id);
    this.#parts.prefixes.loads.drop(served);
    handOffs.departures.drop(served.id);
    roster.silence(served.id);
    if (event.kind === 'finished') {
      check?.ended(served);
      prefixes.offers.offer(served);
    }
    this.#owner.emit(served.id, event);
    roster.remove(served, forget);
    pinning.ended(nowUs, served.id, event);
  }

  /** Instances are gone without whose memory some who wait, or begin anew, fit no more. */
  failOverlong(nowUs: number): void {
    const capacityTokens = this.#owner.capacityTokens();
    for (const served of this.#parts.roster.waitingBeyond(capacityTokens)) {
      const { promptLength, lengthMax } = served.sequence;
      const size = { promptTokens: promptLength, outputTokensMax: lengthMax - promptLength + 1 };
      const refusal = contextTooLong(size, capacityTokens);
      if (refusal !== undefined) this.end(nowUs, served, refusal, false);
    }
  }
}
