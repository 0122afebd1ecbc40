// The invariants of a cluster's requests under faults: checked after every event, and at rest.

import type { LengthEffect, LengthEvent, LengthInstance } from '../../core/instance/length-instance.ts';
import type { BlockListener } from '../../core/kvcache/events/kv-event-log.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';
import type { RefusalCause } from '../../core/protocol/refusal-cause.ts';
import { loadOf } from '../../core/protocol/refusals.ts';
import type { Slo } from '../../core/protocol/slo.ts';
import type { Conductor } from '../../core/router/conductor.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { EventQueue } from '../engine/event-queue.ts';
import type { SimulationConfig } from '../engine/simulation-config.ts';
import type { Network } from '../network/network.ts';
import { IndexChecks } from './index-checks.ts';
import { TransferChecks } from './transfer-checks.ts';
import { cycleOfWaits, waitsOf } from './waits.ts';

/** What the checks use of a cluster. */
export interface CheckedCluster {
  readonly config: Pick<SimulationConfig, 'instances' | 'faults' | 'blockTokens'>;
  readonly queue: EventQueue;
  readonly conductor: Conductor<LengthRequest>;
  readonly instances: readonly LengthInstance[];
  readonly network: Network;
  readonly streams: {
    /** Number of leading tokens of a prompt under way that have left. */
    tokensSent(from: InstanceIndex, to: InstanceIndex, id: RequestId): number;
  };
  readonly clients: {
    readonly unfinished: number;
    /** By the name that the client uses. */
    readonly requests: Iterable<readonly [RequestId, LengthRequest]>;
  };
  readonly faults: { readonly longestUs: number; isUp(instance: InstanceIndex): boolean } | undefined;
  incarnationOf(instance: InstanceIndex): number;
}

/**
 * Maximum age of a removed block in the prefix index, in units of `silentUs`, without the time of a message. After 1.25 units, the conductor's
 * check included, the instance is declared failed or has reported missing events; after 1.25 more its events have arrived or its entries are gone.
 */
const staleSilentTimes = 2 * 1.25;

export class RequestChecks {
  /** Number of checked events. */
  events = 0;
  readonly #cluster: CheckedCluster;
  readonly #timeoutUs: number;
  readonly #silentUs: number;
  readonly #index: IndexChecks;
  readonly #cancels: CancelChecks;
  readonly #transfers: TransferChecks;
  readonly #activations: ActivationChecks;
  /** Maximum message time without delays. */
  readonly #latencyUs: number;
  /** No message is lost. */
  readonly #lossless: boolean;
  /** The smallest TBT SLO of the requests that were forwarded. */
  #tbtUsMin = Number.POSITIVE_INFINITY;

  constructor(cluster: CheckedCluster) {
    const { instances, faults, blockTokens } = cluster.config;
    this.#cluster = cluster;
    this.#lossless = faults?.faults.some(({ kind }) => kind === 'loss' || kind === 'partition') !== true;
    this.#timeoutUs = faults?.times.timeoutUs ?? Number.POSITIVE_INFINITY;
    this.#silentUs = faults?.times.silentUs ?? 0;
    this.#latencyUs = Math.max(...instances.map(({ nic }) => nic.us));
    this.#index = new IndexChecks(instances.length, faults !== undefined, cluster.queue);
    this.#cancels = new CancelChecks(instances.length);
    this.#transfers = new TransferChecks(blockTokens, cluster);
    this.#activations = new ActivationChecks(instances.length);
  }

  /** Observes the blocks that the instance's cache stores and removes. */
  blockListener(instance: InstanceIndex): BlockListener {
    return this.#index.blockListener(instance);
  }

  /** An instance has handled the event with these effects. */
  stepped(index: InstanceIndex, event: LengthEvent, effects: readonly LengthEffect[]): void {
    const { queue, conductor, instances } = this.#cluster;
    if (event.kind === 'cancel') this.#cancels.cancelled(queue.nowUs, index, instances[index], event.id);
    if (effects.some(({ kind }) => kind === 'kvEvents' || kind === 'snapshot')) this.#index.published(index);
    this.#transfers.stepped(index, effects);
    this.#activations.stepped(index, instances[index], event, effects);
    if (event.kind !== 'submit') return;
    this.#tbtUsMin = Math.min(this.#tbtUsMin, event.request.slo?.tbtUs ?? Number.POSITIVE_INFINITY);
    this.#index.checkPrompt(event.request, conductor, instances);
  }

  /** The instance has failed; the next incarnation begins. */
  reset(index: InstanceIndex, instance: LengthInstance): void {
    this.#cancels.reset(index);
    this.#transfers.reset(index);
    this.#activations.reset(index);
    this.#index.reset(index, instance);
  }

  /** Runs after every event. */
  check(): void {
    this.events++;
    const { queue, conductor, instances, network, faults, clients } = this.#cluster;
    if (conductor.accepted !== clients.unfinished)
      throw new Error(
        `Requests broken: ${clients.unfinished} clients wait, the conductor has ${conductor.accepted} requests`,
      );
    const longestUs = faults?.longestUs ?? this.#latencyUs;
    this.#index.check(conductor, staleSilentTimes * this.#silentUs + longestUs);
    this.#cancels.check(queue.nowUs, instances, network, this.#lossless ? longestUs : Number.POSITIVE_INFINITY);
    this.#transfers.check();
    this.#checkAges();
    checkWaits(instances);
  }

  /** A client receives the last event of its request: the end of the full output, or a refusal that its figures support. */
  ended({ id, outputs, outputTokens, slo }: LengthRequest, event: GenerationEvent): void {
    if (event.kind === 'finished' && outputs !== outputTokens)
      throw new Error(`Requests broken: request ${id} ended with ${outputs} of ${outputTokens} tokens`);
    if (event.kind === 'failed' && event.cause !== undefined) this.#checkRefusal(id, slo, event.cause);
  }

  /** The refused load exceeds its limit, and the limit is that of the request or of a running one. */
  #checkRefusal(id: RequestId, slo: Slo | undefined, cause: RefusalCause): void {
    const load = loadOf(cause);
    if (load !== undefined && load <= 1)
      throw new Error(`Requests broken: request ${id} was refused for its ${cause.reason} at a load of ${load}`);
    // A completion time depends on the output length, which the admission controller can only predict.
    const ttftUs = slo?.completionUs === Number.POSITIVE_INFINITY ? slo.ttftUs : 0;
    const leastUs = { ttft: ttftUs, tbt: Math.min(this.#tbtUsMin, slo?.tbtUs ?? 0), completion: 0 };
    if ('mostUs' in cause && cause.mostUs < leastUs[cause.reason])
      throw new Error(
        `Requests broken: request ${id} was refused for its ${cause.reason} over ${cause.mostUs} us: its limit is ${leastUs[cause.reason]} us`,
      );
  }

  /** The conductor has every unfinished request, and each ends before its timeout. */
  #checkAges(): void {
    const { queue, conductor, clients } = this.#cluster;
    for (const [id, { trace }] of clients.requests) {
      if (!conductor.has(id)) throw new Error(`Requests broken: the conductor has lost request ${id}`);
      const ageUs = queue.nowUs - trace.arrivalUs;
      if (ageUs > this.#timeoutUs + this.#silentUs)
        throw new Error(`Requests broken: request ${id} has not ended after ${ageUs / 1e6} s`);
    }
  }

  /** Throws unless all requests have ended. No more arrive, and no event of those that arrived is left. */
  checkEnded(): void {
    const { queue, conductor, instances, clients } = this.#cluster;
    if (clients.unfinished > 0) {
      checkWaits(instances);
      const ids = [...clients.requests].map(([id]) => id).join(', ');
      throw new Error(
        `Requests broken: ${clients.unfinished} requests have not ended at ${queue.nowUs / 1e6} s: ${ids}`,
      );
    }
    if (conductor.accepted > 0)
      throw new Error(`Requests broken: the conductor has ${conductor.accepted} requests that ended`);
  }

  /** As `checkEnded`; throws also when an instance or a stream holds anything. No fault has occurred for a while. */
  checkAtRest(): void {
    this.checkEnded();
    const { instances, network, faults } = this.#cluster;
    if (network.size > 0) throw new Error(`Requests broken: ${network.size} streams belong to no request`);
    for (const [i, instance] of instances.entries()) {
      const { requests, cached, components } = instance;
      const { sender, receiver } = components.handOff;
      const { inProgress: moving } = components.prefixes;
      // Pins outlast requests; the instance itself checks their pages.
      const used = cached.pinned.size > 0 ? 0 : instance.snapshot().pages.used;
      const leaked = requests.size + receiver.size + sender.size + moving;
      if (used + leaked > 0)
        throw new Error(
          `Requests broken: instance ${i} leaks: ${used} pages, ${requests.size} requests, ${receiver.size} receives, ${sender.size} sends, ${moving} prefixes`,
        );
      if (faults?.isUp(i) === false) throw new Error(`Requests broken: instance ${i} has not restarted`);
    }
  }
}

function checkWaits(instances: readonly LengthInstance[]): void {
  const cycle = cycleOfWaits(waitsOf(instances));
  if (cycle !== undefined) throw new Error(`Requests broken: a cycle of waiting: ${cycle}`);
}

/** Tokens `from..tokens` of a prompt. */
interface TokenRange {
  readonly from: number;
  readonly tokens: number;
}

/** No member of a pipeline group computes on activations that it has not received. */
class ActivationChecks {
  /** (instances): by request, the tokens with received activations. */
  readonly #received: readonly Map<string, TokenRange[]>[];

  constructor(instances: number) {
    this.#received = Array.from({ length: instances }, () => new Map());
  }

  /** An instance has handled the event with these effects. */
  stepped(index: InstanceIndex, instance: LengthInstance, event: LengthEvent, effects: readonly LengthEffect[]): void {
    if (event.kind === 'activations') this.#receive(index, instance, event.id, event);
    for (const effect of effects)
      if (effect.kind === 'runStep' && (effect.range?.index ?? 0) > 0) this.#checkStep(index, instance);
  }

  /** Removes the entries of prompts without a stage at the instance. */
  #receive(index: InstanceIndex, instance: LengthInstance, id: string, { from, tokens }: TokenRange): void {
    const received = this.#received[index];
    for (const other of received.keys()) if (!instance.components.pipeline.has(other)) received.delete(other);
    received.set(id, [...(received.get(id) ?? []), { from, tokens }]);
  }

  /** A step over a chunk begins. */
  #checkStep(index: InstanceIndex, { inFlight }: LengthInstance): void {
    const [{ id, sequence }] = inFlight;
    const { computed, planned } = sequence;
    const received = this.#received[index].get(id) ?? [];
    for (let at = computed; at < computed + planned; ) {
      const rows = received.find(({ from, tokens }) => from <= at && at < tokens);
      if (rows === undefined)
        throw new Error(
          `Activations broken: instance ${index} computes tokens ${computed} to ${computed + planned} of ${id}, and has not received those of token ${at}`,
        );
      at = rows.tokens;
    }
  }

  /** The instance has failed. */
  reset(index: InstanceIndex): void {
    this.#received[index].clear();
  }
}

/** Cancelled requests remembered for each instance. */
const rememberedMax = 4096;

/** A cancelled request holds nothing: at an instance once the cancel is received, on the network one message later. */
class CancelChecks {
  /** (instances): by request, the time at which its cancel was received. */
  readonly #cancelledUs: readonly Map<RequestId, number>[];
  #any = false;

  constructor(instances: number) {
    this.#cancelledUs = Array.from({ length: instances }, () => new Map<RequestId, number>());
  }

  /** Throws when the instance holds something of the request, except rows of the running step. */
  cancelled(
    nowUs: number,
    index: InstanceIndex,
    { requests, components: { handOff } }: LengthInstance,
    id: RequestId,
  ): void {
    const cancelledUs = this.#cancelledUs[index];
    cancelledUs.set(id, nowUs);
    this.#any = true;
    if (cancelledUs.size > rememberedMax)
      for (const oldest of cancelledUs.keys()) if (cancelledUs.delete(oldest)) break;
    if (handOff.sender.has(id) || requests.has(id)) throw heldAfterCancel(index, id);
    for (const awaited of handOff.receiver.expectedPrompts()) if (awaited === id) throw heldAfterCancel(index, id);
  }

  /** The instance has failed. */
  reset(index: InstanceIndex): void {
    this.#cancelledUs[index].clear();
  }

  /** No cancelled request returns, and transfers from other instances end when they receive the cancel. @param latencyUs maximum message time; infinite where messages are lost */
  check(nowUs: number, instances: readonly LengthInstance[], network: Network, latencyUs: number): void {
    if (!this.#any) return;
    for (const [index, { requests, components }] of instances.entries()) {
      const cancelledUs = this.#cancelledUs[index];
      if (cancelledUs.size === 0) continue;
      for (const { id } of requests.live) if (cancelledUs.has(id)) throw heldAfterCancel(index, id);
      for (const { id } of components.handOff.receiver.all()) if (cancelledUs.has(id)) throw heldAfterCancel(index, id);
    }
    for (const { kind, from, to, name } of network.transfers) {
      const cancelledUs = this.#cancelledUs[kind === 'prefix' ? to : from].get(name);
      if (cancelledUs !== undefined && nowUs > cancelledUs + (kind === 'prefix' ? latencyUs : 0))
        throw heldAfterCancel(from, name);
    }
  }
}

function heldAfterCancel(index: InstanceIndex, id: RequestId): Error {
  return new Error(`Requests broken: instance ${index} holds request ${id}, which is cancelled`);
}
