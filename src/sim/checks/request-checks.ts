// What must hold over a cluster's requests, whatever goes wrong: looked at after every event, and once all has come to rest.

import type { LengthEffect, LengthEvent, LengthInstance } from '../../core/instance/length-instance.ts';
import type { BlockListener } from '../../core/kvcache/events/kv-event-log.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';
import type { RefusalCause } from '../../core/protocol/refusal-cause.ts';
import { loadOf } from '../../core/protocol/refusals.ts';
import type { Slo } from '../../core/protocol/slo.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { Inside, SimulationConfig } from '../engine/simulation-config.ts';
import { RowChecks } from './activation-rows.ts';
import { Cancelled } from './cancelled.ts';
import { Staleness } from './staleness.ts';
import { Transfers } from './transfers.ts';
import { cycleOfWaits, waitsOf } from './waits.ts';

/** The simulation, as those see it who check it. */
export interface Checked {
  readonly nowUs: number;
  /** Requests whose clients wait. */
  readonly live: number;
  readonly inside: Inside;
}

/**
 * What an instance has lost is named no longer than so many silences, and what a message takes: after one and a quarter, as far as the
 * conductor looks, the instance is given up or has reported what is missing; after as many again that is known, or nothing is.
 */
const staleSilences = 2 * 1.25;

export class RequestChecks {
  events = 0;
  readonly #checked: Checked;
  readonly #timeoutUs: number;
  readonly #silentUs: number;
  readonly #staleness: Staleness;
  readonly #cancelled: Cancelled;
  readonly #transfers: Transfers;
  readonly #rows: RowChecks;
  /** Of a message, at most, where nothing delays it. */
  readonly #latencyUs: number;
  /** Every message arrives. */
  readonly #lossless: boolean;
  /** What any request may wait for each token that was sent somewhere. */
  #tbtUsMin = Number.POSITIVE_INFINITY;

  constructor(
    { instances, faults, blockTokens }: Pick<SimulationConfig, 'instances' | 'faults' | 'blockTokens'>,
    checked: Checked,
  ) {
    this.#checked = checked;
    this.#lossless = faults?.faults.some(({ kind }) => kind === 'loss' || kind === 'partition') !== true;
    this.#timeoutUs = faults?.times.timeoutUs ?? Number.POSITIVE_INFINITY;
    this.#silentUs = faults?.times.silentUs ?? 0;
    this.#latencyUs = Math.max(...instances.map(({ nic }) => nic.us));
    this.#staleness = new Staleness(instances.length, faults !== undefined, () => checked.nowUs);
    this.#cancelled = new Cancelled(instances.length);
    this.#transfers = new Transfers(blockTokens);
    this.#rows = new RowChecks(instances.length);
  }

  /** Hears what an instance's cache stores and drops. */
  witness(instance: InstanceIndex): BlockListener {
    return this.#staleness.witness(instance);
  }

  /** An instance has heard this, and wants these carried out. */
  stepped(index: InstanceIndex, event: LengthEvent, effects: readonly LengthEffect[]): void {
    const { nowUs, inside } = this.#checked;
    const { conductor, instances } = inside;
    if (event.kind === 'cancel') this.#cancelled.heard(nowUs, index, instances[index], event.id);
    if (effects.some(({ kind }) => kind === 'journal' || kind === 'snapshot')) this.#staleness.tells(index);
    this.#transfers.wants(index, instances[index], effects, inside.leftTo);
    this.#rows.stepped(index, instances[index], event, effects);
    if (event.kind !== 'submit') return;
    this.#tbtUsMin = Math.min(this.#tbtUsMin, event.request.slo?.tbtUs ?? Number.POSITIVE_INFINITY);
    this.#staleness.checkChain(event.request, (...block) => conductor.indexHas(...block), instances);
  }

  /** The instance is gone; another life begins. */
  gone(index: InstanceIndex, instance: LengthInstance): void {
    this.#cancelled.gone(index);
    this.#transfers.gone(index);
    this.#rows.gone(index);
    this.#staleness.gone(index, instance);
  }

  /** After every event. */
  look(): void {
    this.events++;
    const { nowUs, live, inside } = this.#checked;
    const { conductor, instances, network, leftTo, faults } = inside;
    if (conductor.accepted !== live)
      throw new Error(`Requests broken: ${live} clients wait, ${conductor.accepted} requests are known`);
    const longestUs = faults?.longestUs ?? this.#latencyUs;
    this.#staleness.check((...block) => conductor.indexHas(...block), staleSilences * this.#silentUs + longestUs);
    this.#cancelled.check(nowUs, instances, network, this.#lossless ? longestUs : Number.POSITIVE_INFINITY);
    this.#transfers.check(instances, network, leftTo, (instance) => faults?.incarnationOf(instance) ?? 0);
    this.#checkAges();
    checkWaits(instances);
  }

  /** A client hears the last of its request: all of it, or a refusal that its own figures bear out. */
  ended({ id, outputs, outputTokens, slo }: LengthRequest, event: GenerationEvent): void {
    if (event.kind === 'finished' && outputs !== outputTokens)
      throw new Error(`Requests broken: request ${id} ended with ${outputs} of ${outputTokens} tokens`);
    if (event.kind === 'failed' && event.cause !== undefined) this.#checkRefusal(id, slo, event.cause);
  }

  /** What was too much is over the most that it may be, and that is what somebody said who comes or is there. */
  #checkRefusal(id: RequestId, slo: Slo | undefined, cause: RefusalCause): void {
    const load = loadOf(cause);
    if (load !== undefined && load <= 1)
      throw new Error(`Requests broken: request ${id} was refused for its ${cause.reason} at a load of ${load}`);
    // An end depends on how long the output will be, of which the gate only has a guess.
    const ttftUs = slo?.completionUs === Number.POSITIVE_INFINITY ? slo.ttftUs : 0;
    const leastUs = { ttft: ttftUs, tbt: Math.min(this.#tbtUsMin, slo?.tbtUs ?? 0), completion: 0 };
    if ('mostUs' in cause && cause.mostUs < leastUs[cause.reason])
      throw new Error(
        `Requests broken: request ${id} was refused for its ${cause.reason} over ${cause.mostUs} us: it may be ${leastUs[cause.reason]} us`,
      );
  }

  /** Every request has its client's name in the conductor, and ends in time. */
  #checkAges(): void {
    const { nowUs, inside } = this.#checked;
    for (const [id, { trace }] of inside.requests) {
      if (!inside.conductor.has(id)) throw new Error(`Requests broken: request ${id} is forgotten`);
      if (nowUs - trace.arrivalUs > this.#timeoutUs + this.#silentUs)
        throw new Error(`Requests broken: request ${id} has not ended after ${(nowUs - trace.arrivalUs) / 1e6} s`);
    }
  }

  /** No request comes any more, and nothing is left to happen for those that came. */
  checkEnded(): void {
    const { nowUs, live, inside } = this.#checked;
    if (live > 0) {
      checkWaits(inside.instances);
      const ids = [...inside.requests].map(([id]) => id).join(', ');
      throw new Error(`Requests broken: ${live} requests have not ended at ${nowUs / 1e6} s: ${ids}`);
    }
    const { accepted } = inside.conductor;
    if (accepted > 0) throw new Error(`Requests broken: ${accepted} requests are known that ended`);
  }

  /** Besides, nothing has gone wrong for a while: nobody holds anything. */
  checkAtRest(): void {
    this.checkEnded();
    const { instances, network, faults } = this.#checked.inside;
    if (network.size > 0) throw new Error(`Requests broken: ${network.size} streams have nobody`);
    for (const [i, instance] of instances.entries()) {
      const { handOffs, roster, cached } = instance;
      // Pins last longer; whose pages those are the instance checks itself.
      const used = cached.pinned.size > 0 ? 0 : instance.snapshot().pages.used;
      const left = roster.size + handOffs.arrivals.size + handOffs.departures.size + instance.moving;
      if (used + left > 0)
        throw new Error(
          `Requests broken: instance ${i} leaks: ${used} pages, ${roster.size} requests, ${handOffs.arrivals.size} arrivals, ${handOffs.departures.size} departures, ${instance.moving} prefixes`,
        );
      if (faults?.isUp(i) === false) throw new Error(`Requests broken: instance ${i} has not come back`);
    }
  }
}

function checkWaits(instances: readonly LengthInstance[]): void {
  const cycle = cycleOfWaits(waitsOf(instances));
  if (cycle !== undefined) throw new Error(`Requests broken: a cycle of waiting: ${cycle}`);
}
