// Message delivery in a simulated cluster: messages take time, and a computing instance may receive them only when its step ends.

import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { type FaultLayer, withOwnArrays } from '../faults/fault-layer.ts';
import type { ClusterHost, ThreadTimes } from './simulation-config.ts';

interface DeliveryHost extends ClusterHost {
  readonly faults: FaultLayer | undefined;
  readonly executors: readonly { readonly isRunning: boolean }[];
  /** Latency of a message between two instances, with the time to load `loadBytes` from host memory. */
  latencyUs(from: InstanceIndex, to: InstanceIndex, loadBytes: number): number;
}

/** Messages of an instance in the current turn of its loop. */
interface Turn {
  readonly messages: (() => void)[];
  started: RequestId | undefined;
  firstTokens: RequestId | undefined;
}

export class MessageDelivery {
  readonly #host: DeliveryHost;
  /** (instances): messages that arrived while the instance computed. */
  readonly #deferred: readonly LengthEvent[][];
  /** (instances) */
  readonly #turns: readonly Turn[];
  /** (instances): when the conductor receives the instance's latest messages. */
  readonly #receivedUs: Float64Array;
  /** (instances): when it receives the conductor's latest message. */
  readonly #arrivedUs: Float64Array;

  constructor(host: DeliveryHost) {
    this.#host = host;
    const { instances } = host.config;
    this.#deferred = instances.map(() => []);
    this.#turns = instances.map(() => ({ messages: [], started: undefined, firstTokens: undefined }));
    this.#receivedUs = new Float64Array(instances.length);
    this.#arrivedUs = new Float64Array(instances.length);
  }

  /** From one instance to another. */
  sendToPeer(from: InstanceIndex, to: InstanceIndex, event: LengthEvent, loadBytes = 0): void {
    const { faults, queue, config } = this.#host;
    const usualUs = this.#host.latencyUs(from, to, loadBytes);
    const us = Math.round(streamedUs(config.threads, queue.nowUs, to, event) ?? usualUs);
    if (faults === undefined) queue.after(us, () => this.#host.deliverToInstance(to, event));
    else faults.sendToPeer(from, to, event, us);
  }

  /** From the conductor. */
  sendToInstance(index: InstanceIndex, event: LengthEvent): void {
    const { faults, config, queue } = this.#host;
    if (faults !== undefined) faults.sendToInstance(index, event);
    else if (config.threads === undefined) this.#host.deliverToInstance(index, event);
    else {
      const request = event.kind === 'submit' ? event.request.id : undefined;
      const atUs = queue.nowUs + Math.round(config.threads.toInstanceUs(queue.nowUs, index, request));
      this.#arrivedUs[index] = Math.max(atUs, this.#arrivedUs[index]);
      queue.at(this.#arrivedUs[index], () => this.#host.deliverToInstance(index, event));
    }
  }

  /** From an instance. */
  sendToConductor(index: InstanceIndex, event: ConductorEvent<LengthRequest>): void {
    const { faults, config } = this.#host;
    if (faults !== undefined) faults.sendToConductor(index, event);
    else if (config.threads === undefined) this.#host.deliverToConductor(event);
    else {
      const message = withOwnArrays(event);
      const turn = this.#turns[index];
      turn.messages.push(() => this.#host.deliverToConductor(message));
      if (event.kind === 'generationEvent' && event.event.kind === 'started') turn.started = event.id;
      if (isFirstOutput(event)) turn.firstTokens = event.id;
    }
  }

  /** Calls `observe` when the conductor receives the messages of the instance's current turn. */
  withTurn(index: InstanceIndex, observe: () => void): void {
    if (this.#host.config.threads === undefined) observe();
    else this.#turns[index].messages.push(observe);
  }

  /** True if the instance's current turn has messages to the conductor. */
  hasMessages(index: InstanceIndex): boolean {
    return this.#turns[index].messages.length > 0;
  }

  /** Sends all that one event produced as one message. */
  endTurn(index: InstanceIndex, event: LengthEvent): void {
    const { config, queue } = this.#host;
    const turn = this.#turns[index];
    if (config.threads === undefined || turn.messages.length === 0) return;
    const messages = turn.messages.splice(0);
    const { started, firstTokens } = turn;
    const sent = { stepEnded: event.kind === 'stepDone', started, firstTokens };
    turn.started = undefined;
    turn.firstTokens = undefined;
    const receivedUs = Math.round(config.threads.receivedUs(queue.nowUs, index, sent));
    this.#receivedUs[index] = Math.max(receivedUs, this.#receivedUs[index], queue.nowUs);
    queue.at(this.#receivedUs[index], () => {
      for (const deliver of messages) deliver();
    });
  }

  /** Defers the event to the end of the running step; false: it is delivered now. Cancels are not deferred. */
  defer(index: InstanceIndex, event: LengthEvent): boolean {
    const { config, executors } = this.#host;
    if (config.threads === undefined || event.kind === 'cancel' || !executors[index].isRunning) return false;
    // A wake that is due follows the end of the step and all that arrived during it, as in the loop of a live instance.
    if (event.kind !== 'wake') this.#deferred[index].push(event);
    return true;
  }

  /** The instance's step has ended: delivers the deferred events before its end. */
  deliverDeferred(index: InstanceIndex): void {
    const deferred = this.#deferred[index];
    if (deferred.length > 0) for (const event of deferred.splice(0)) this.#host.deliverToInstance(index, event);
  }

  /** Drops the events that a failed instance has not received and the messages that it has not sent. */
  reset(index: InstanceIndex): void {
    this.#deferred[index].length = 0;
    this.#turns[index].messages.length = 0;
    this.#turns[index].started = undefined;
    this.#turns[index].firstTokens = undefined;
  }
}

/** The first tokens of a request, or the end of a prompt that is handed off. */
function isFirstOutput(
  event: ConductorEvent<LengthRequest>,
): event is Extract<ConductorEvent<LengthRequest>, { kind: 'generationEvent' | 'prefilled' }> {
  if (event.kind === 'prefilled') return true;
  return event.kind === 'generationEvent' && event.event.kind === 'tokens' && event.event.at === 0;
}

/** Latency of the end of a stream; undefined: the usual one. */
function streamedUs(
  times: ThreadTimes | undefined,
  nowUs: number,
  to: InstanceIndex,
  event: LengthEvent,
): number | undefined {
  if (event.kind === 'promptReceived') return times?.handOffUs?.(nowUs, to, event.id);
  if (event.kind === 'arriving') return times?.prefixBeginUs?.(nowUs, to, event.id);
  return event.kind === 'loaded' ? times?.prefixUs?.(nowUs, to, event.id) : undefined;
}
