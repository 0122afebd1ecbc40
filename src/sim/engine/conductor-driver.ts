// The conductor of a simulated cluster: delivers its events, carries out its effects, and wakes it.

import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { ConductorEffect, StandbyEffect } from '../../core/protocol/effects.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { MessageCounts } from '../../core/protocol/message-counts.ts';
import { lengthAdmission, type SloRule } from '../../core/router/admission/length-admission.ts';
import { Conductor } from '../../core/router/conductor.ts';
import { lengthRequests } from '../../core/router/length-requests.ts';
import { lengthJobs, lengthPlacement } from '../../core/router/placement/length-placement.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { assertNever } from '../../util/assert-never.ts';
import { rackLinks } from '../network/network.ts';
import type { Outcome } from '../report/outcome.ts';
import type { Clients } from '../workload/clients.ts';
import {
  type ClusterHost,
  type LearnedPredictors,
  type LearnedState,
  predictedInstances,
  type SimulationConfig,
} from './simulation-config.ts';

export interface ConductorHost extends ClusterHost {
  readonly sloOf: SloRule;
  readonly messageCounts: MessageCounts;
  readonly clients: Clients;
  readonly outcome: Outcome;
  readonly delivery: { sendToInstance(index: InstanceIndex, event: LengthEvent): void };
}

export class ConductorDriver {
  readonly #host: ConductorHost;
  readonly #learned: LearnedPredictors | undefined;
  #conductor: Conductor<LengthRequest>;
  #wakeUs = Number.POSITIVE_INFINITY;

  constructor(host: ConductorHost) {
    this.#host = host;
    this.#learned = host.config.learned;
    // A live instance reports its initial guess of step times when it joins: a thread at once, a process with its first heartbeat.
    if (this.#learned !== undefined && host.config.threads?.nextReportUs === undefined)
      for (const [i, instance] of host.instances.entries()) this.observe(i, instance.snapshot());
    this.#conductor = this.#create(false);
  }

  get conductor(): Conductor<LengthRequest> {
    return this.#conductor;
  }

  deliver(event: ConductorEvent<LengthRequest>): void {
    const { config, queue } = this.#host;
    if (config.external === undefined) this.#step(event);
    else for (const each of config.external.received(queue.nowUs, event)) this.#step(each);
  }

  #step(event: ConductorEvent<LengthRequest>): void {
    const { config, queue } = this.#host;
    const { nowUs } = queue;
    if (this.#learned !== undefined) learn(this.#learned.prefills, nowUs, event);
    const effects = this.#conductor.step(nowUs, event);
    if (config.checking) this.#conductor.check();
    for (const effect of effects) this.#perform(effect);
    for (const effect of this.#conductor.takeStandbyEffects()) this.#performStandby(effect);
    if (config.faults !== undefined) this.#scheduleWake();
  }

  /** Learns from an instance's snapshot. */
  observe(instance: InstanceIndex, snapshot: LearnedState): void {
    this.#learned?.prefills.observe(instance, snapshot);
    if (snapshot.stepCost !== undefined) this.#learned?.steps?.[instance].setCoefficients(snapshot.stepCost);
    this.#learned?.transfers.observe(instance, snapshot);
  }

  /** The gateway restarts with its conductor: all running requests fail. */
  restart(): void {
    this.#host.clients.failAll('Cannot generate: the gateway stopped');
    this.#conductor = this.#create(true);
    this.#scheduleWake();
  }

  /** @param restarted no instance is known yet */
  #create(restarted: boolean): Conductor<LengthRequest> {
    const { config, sloOf, instances } = this.#host;
    // Without faults no message is late or an orphan, so that none is counted.
    const messageCounts = config.faults && this.#host.messageCounts;
    const capacityTokens = instances.map((instance) => instance.capacityTokens);
    const longestTokens = instances.map(({ capacityTokens, components }) =>
      Math.max(capacityTokens, components.sparseKv?.longestTokens ?? 0),
    );
    return createConductor(config, sloOf, { capacityTokens, longestTokens }, { restarted, messageCounts });
  }

  #scheduleWake(): void {
    const { queue } = this.#host;
    const { nextUs } = this.#conductor;
    if (nextUs === this.#wakeUs || nextUs === Number.POSITIVE_INFINITY) return;
    this.#wakeUs = nextUs;
    queue.at(Math.max(queue.nowUs, nextUs), () => {
      if (this.#conductor.nextUs <= queue.nowUs) this.deliver({ kind: 'wake' });
    });
  }

  #perform(effect: ConductorEffect<LengthRequest>): void {
    const { config, clients, outcome, delivery, queue } = this.#host;
    switch (effect.kind) {
      case 'forward':
        this.#forward(effect);
        break;
      case 'emit':
        clients.deliver(effect.id, effect.event);
        break;
      case 'cancel':
        this.#learned?.prefills.forget(effect.id);
        config.external?.cancelled(queue.nowUs, effect.instance, effect.id);
        delivery.sendToInstance(effect.instance, { kind: 'cancel', id: effect.id });
        break;
      case 'requestSnapshot':
        delivery.sendToInstance(effect.instance, { kind: 'requestSnapshot' });
        break;
      case 'pin':
      case 'unpin':
        delivery.sendToInstance(effect.instance, effect);
        break;
      case 'roleSwitched':
      case 'pinUpdated':
        outcome.count(effect);
        break;
      case 'placed':
        config.requestListener?.placed(effect.id, effect.placement);
        break;
      case 'found':
        config.requestListener?.found(effect.id, effect.blocks);
        break;
      case 'ignored':
      case 'drained':
        break;
      default:
        assertNever(effect);
    }
  }

  #forward(effect: Extract<ConductorEffect<LengthRequest>, { kind: 'forward' }>): void {
    const { config, clients, delivery, queue } = this.#host;
    const { id, instance, predicted, request, ...targets } = effect;
    request.predicted = predicted;
    clients.attempt(id, request);
    this.#learned?.prefills.forwarded(instance, id, request.inputTokens);
    config.external?.forwarded(queue.nowUs, request, instance, targets.decodeAt);
    const { decodeAt, prefix, offer, cachedTokens, group, incarnation, decodeIncarnation } = targets;
    const sent = { decodeAt, prefix, offer, cachedTokens, group, incarnation, decodeIncarnation };
    const event = { kind: 'submit', request, ...sent } as const;
    // The end of a step may release a held job: other steps that end at the same time come first.
    if (request.trace.batch === true) queue.after(0, () => delivery.sendToInstance(instance, event));
    else delivery.sendToInstance(instance, event);
  }

  #performStandby(effect: StandbyEffect): void {
    const { config, delivery, queue } = this.#host;
    switch (effect.kind) {
      case 'migrate':
        delivery.sendToInstance(effect.instance, effect);
        break;
      case 'startInstance': {
        const joined = { kind: 'instanceJoined', instance: effect.instance, incarnation: 0 } as const;
        queue.after(config.instances[effect.instance].startUs ?? 0, () => this.deliver(joined));
        break;
      }
      default:
        assertNever(effect);
    }
  }
}

/**
 * @param memory (instances): tokens of full KV that fit, and those of the longest request, which may keep fewer
 * @param options restarted: no instance is known yet
 */
export function createConductor(
  simulated: SimulationConfig,
  sloOf: SloRule,
  { capacityTokens, longestTokens }: Readonly<Record<'capacityTokens' | 'longestTokens', readonly number[]>>,
  { restarted, messageCounts }: { readonly restarted: boolean; readonly messageCounts: MessageCounts | undefined },
): Conductor<LengthRequest> {
  const { linkBytesPerSecond, racks, faults, ...config } = simulated;
  const instances = predictedInstances(simulated);
  const placement = lengthPlacement(config.placement, instances, linkBytesPerSecond, config.pipeline);
  const { transfers } = placement;
  const link = racks && rackLinks({ nics: instances.map(({ nic }) => nic), linkBytesPerSecond, racks });
  const learned = config.learned && {
    predictors: config.learned.prefills.times,
    transfers: config.learned.transfers.config,
    ssds: config.learned.transfers.ssds,
  };
  // Engines fetch no prefixes from each other, and do not distinguish tenants.
  const external = config.external && {
    prompts: { ...placement.prompts, tenantOf: () => '' },
    ...{ predictors: config.external.prefills.times, transfers: undefined, ssds: undefined, aheadRows: undefined },
  };
  return new Conductor({
    instances: instances.map(({ role, startUs }, i) => {
      const standby = startUs !== undefined;
      return { capacityTokens: longestTokens[i], role, standby, absent: restarted || standby };
    }),
    queueMax: config.queueMax,
    requests: lengthRequests,
    placement: {
      ...placement,
      ...(transfers && link && { transfers: { ...transfers, link } }),
      ...learned,
      ...external,
      recordsPrefixes: config.requestListener !== undefined,
    },
    admission: lengthAdmission(config.admission, sloOf, instances, capacityTokens, linkBytesPerSecond),
    batchJobs: lengthJobs(instances),
    roleSwitch: config.admission.roleSwitch,
    messageCounts,
    recordsPlacements: config.requestListener !== undefined,
    retries: faults && {
      attemptsMax: faults.times.attemptsMax,
      detection: { reportTimeoutUs: faults.times.silentUs, requestTimeoutUs: faults.times.timeoutUs },
    },
  });
}

function learn(prefills: LearnedPredictors['prefills'], nowUs: number, event: ConductorEvent<LengthRequest>): void {
  if (event.kind === 'generationEvent') prefills.received(nowUs, event.instance, event.id, event.event);
  else if (event.kind === 'prefilled') prefills.prefilled(nowUs, event.id);
}
