// The lifecycle of a request at an instance: submitted or refused, scheduled, begun, then cancelled, ended, or handed off to another instance.

import { meanKept } from '../kvcache/sparsity/sparse-plan.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { FailureCode } from '../protocol/refusal-cause.ts';
import { contextTooLong, promptExceedsReceiveBuffer, queueFull } from '../protocol/refusals.ts';
import { promptOf, type RequestSize } from '../protocol/request-size.ts';
import type { Continuation, Identified, LeaveReason, Submission } from './component.ts';
import type { RunningRequest } from './executor/executor.ts';
import type { InstanceInternals } from './instance-internals.ts';
import { Throughput } from './throughput.ts';

export class RequestLifecycle<Request extends Identified, S extends RunningRequest> {
  readonly #instance: InstanceInternals<Request, S>;
  readonly #throughput = new Throughput();

  constructor(instance: InstanceInternals<Request, S>) {
    this.#instance = instance;
  }

  submit(event: Submission<Request>): void {
    const { request, incarnation } = event;
    const { requests, config } = this.#instance;
    const isKnown = requests.has(request.id) || requests.hasLeft(request.id);
    if (isKnown || (incarnation !== undefined && incarnation !== config.incarnation)) {
      const why = isKnown ? 'is already known' : `is meant for incarnation ${incarnation}`;
      this.#instance.ignore(event, `request ${request.id} ${why}`);
      return;
    }
    const refusal = this.#refusal(event);
    this.#instance.notify(request.id, refusal ?? { kind: 'accepted' });
    if (refusal !== undefined) return;
    for (const component of this.#instance.hooks.takeOver) if (component.takeOver(request, event)) return;
    this.schedule(request, event);
  }

  #refusal({ request, decodeAt }: Submission<Request>) {
    const { requests, config, executor, nowUs, capacityTokens, ownCapacityTokens } = this.#instance;
    const full = executor.size(request);
    const size = decodeAt === undefined ? full : promptOf(full);
    // Another instance can continue the request if the prompt and one more token fit here.
    const beginsHere = size.promptTokens < ownCapacityTokens;
    const tooLong = contextTooLong(size, this.#longest(size, beginsHere ? capacityTokens : ownCapacityTokens));
    if (tooLong !== undefined || requests.size < config.queueMax) return tooLong;
    return queueFull(requests.size, config.queueMax, this.#throughput.retryAfterMs(nowUs, requests.size));
  }

  /** Tokens of the longest request like this one. @param most of one whose kind makes no difference */
  #longest(size: RequestSize, most: number): number {
    let longest = most;
    for (const component of this.#instance.hooks.capacityOf) longest = component.capacityOf(size) ?? longest;
    return longest;
  }

  schedule(request: Request, continuation: Continuation): void {
    const running = this.#instance.create(request);
    for (const component of this.#instance.hooks.accepted) component.accepted(running, request, continuation);
    this.#instance.requests.add(running);
  }

  /** Starts a request that the scheduler has admitted, unless it has started before a preemption. */
  start(running: S): void {
    if (running.started) return;
    running.started = true;
    const { received } = running;
    if (received === undefined) {
      this.begin(running);
      return;
    }
    for (const component of this.#instance.hooks.started) component.started(running);
    if (received.length > 0) this.#instance.executor.firstTokenDelivered(running, this.#instance.nowUs);
    else this.#instance.emit({ kind: 'migrated', id: running.id });
    for (const event of received) this.#instance.notify(running.id, event);
  }

  begin(running: S): void {
    const { totals, hooks } = this.#instance;
    const { cachedTokens: cached = 0, arriving, promptLength, sparsity } = running.sequence;
    // A resumed request finds the output of its earlier attempt in the cache too, which is no part of its prompt.
    const cachedTokens = Math.min(cached, promptLength);
    running.started = true;
    totals.prompt += promptLength;
    totals.cached += cachedTokens;
    for (const component of hooks.started) component.started(running);
    const ahead = arriving === undefined ? undefined : ({ ahead: true } as const);
    const kept = sparsity && { keptTokens: meanKept(sparsity.layout, promptLength) };
    const alone = running.leftGroup === true ? ({ alone: true } as const) : undefined;
    this.#instance.notify(running.id, { kind: 'started', cachedTokens, ...ahead, ...alone, ...kept });
    running.relay?.begin();
  }

  cancel(event: Extract<InstanceEvent<Request, never>, { kind: 'cancel' }>): void {
    const { requests, steps, nowUs } = this.#instance;
    const { id } = event;
    const running = requests.get(id);
    const wasExpected = this.#release(id, running, 'cancelled');
    if (running === undefined) {
      if (!wasExpected) this.#instance.ignore(event, `request ${id} is not live`);
      requests.markLeft(id);
      return;
    }
    requests.close(id);
    running.cancelled = true;
    if (!steps.cancelRows(nowUs, running)) requests.remove(running, false);
  }

  /** Another instance has the request, or the stream to that instance is broken. */
  handedOff(running: S): void {
    this.#close(running);
    this.#leave(running);
  }

  /** The request exceeds the receive buffers of its decode instance. */
  handOffDeclined(running: S): void {
    this.#close(running);
    this.#instance.notify(running.id, promptExceedsReceiveBuffer(running.sequence.promptLength));
    this.#leave(running);
  }

  #close(running: S): void {
    this.#release(running.id, running, 'handedOff');
    this.#instance.requests.close(running.id);
  }

  /** Frees its blocks: after the step in flight if the request has rows in it. */
  #leave(running: S): void {
    if (running.sequence.planned > 0) running.cancelled = true;
    else this.#instance.requests.remove(running, false);
  }

  finish(running: S, events: readonly GenerationEvent[], reason: 'stop' | 'length'): void {
    for (const event of events) this.#instance.notify(running.id, event);
    this.#end(running, { kind: 'finished', reason }, false);
  }

  /** Fails the request: its blocks leave the cache. */
  fail(running: S, message: string, code: FailureCode = 'ENGINE_FAILED'): void {
    if (running.cancelled) this.#instance.requests.remove(running, true);
    else this.#end(running, { kind: 'failed', code, message, retryAfterMs: undefined }, true);
  }

  /** Ends the request with this event. @param forget its blocks leave the cache */
  #end(running: S, event: GenerationEvent, forget: boolean): void {
    const { requests, nowUs, hooks } = this.#instance;
    const { id } = running;
    this.#throughput.ended(nowUs);
    this.#release(id, running, event.kind === 'finished' ? 'finished' : 'failed');
    requests.close(id);
    this.#instance.notify(id, event);
    requests.remove(running, forget);
    for (const component of hooks.ended) component.ended(id, event);
  }

  #release(id: RequestId, running: S | undefined, reason: LeaveReason): boolean {
    let wasExpected = false;
    for (const component of this.#instance.hooks.releaseRequest)
      if (component.releaseRequest(id, running, reason)) wasExpected = true;
    return wasExpected;
  }

  /** Memory is lost: fails waiting requests that exceed the capacity that is left. */
  failTooLong(): void {
    const { requests, executor, capacityTokens } = this.#instance;
    for (const running of requests.waitingBeyond(capacityTokens)) {
      const { promptLength, lengthMax, hasBudget } = running.sequence;
      const size = hasBudget
        ? executor.size(executor.requestOf(running))
        : { promptTokens: promptLength, outputTokensMax: lengthMax - promptLength + 1 };
      const refusal = contextTooLong(size, hasBudget ? this.#longest(size, capacityTokens) : capacityTokens);
      if (refusal !== undefined) this.#end(running, refusal, false);
    }
  }
}
