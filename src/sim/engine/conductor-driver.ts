// The conductor of a simulated cluster: it is told, what it asks for is carried out, and it is woken at its times.

import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { ConductorEffect, StandbyEffect } from '../../core/protocol/effects.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { MessageCounts } from '../../core/protocol/message-counts.ts';
import type { SloRule } from '../../core/router/admission/length-admission.ts';
import type { Conductor } from '../../core/router/conductor.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { Outcome } from '../report/outcome.ts';
import type { Clients } from '../workload/clients.ts';
import { createConductor } from './create-conductor.ts';
import type { Learned, SimulationConfig } from './simulation-config.ts';

/** The cluster, as its conductor sees it. */
interface Conducted {
  readonly config: SimulationConfig;
  readonly sloOf: SloRule;
  readonly fates: MessageCounts;
  readonly clients: Clients;
  readonly outcome: Outcome;
  /** (instances) */
  readonly capacityTokens: () => readonly number[];
  readonly later: (delayUs: number, action: () => void) => void;
  /** An instance that was to start is there. */
  readonly join: (joined: Extract<ConductorEvent<LengthRequest>, { kind: 'instanceJoined' }>) => void;
  readonly toInstance: (index: InstanceIndex, event: LengthEvent) => void;
}

export class ConductorDriver {
  readonly #cluster: Conducted;
  readonly #checking: boolean;
  readonly #faulty: boolean;
  readonly #learned: Learned | undefined;
  #conductor: Conductor<LengthRequest>;
  #wakeUs = Number.POSITIVE_INFINITY;

  constructor(cluster: Conducted) {
    this.#cluster = cluster;
    this.#checking = cluster.config.checking;
    this.#faulty = cluster.config.faults !== undefined;
    this.#learned = cluster.config.learned;
    this.#conductor = this.#create(false);
  }

  get conductor(): Conductor<LengthRequest> {
    return this.#conductor;
  }

  tell(nowUs: number, event: ConductorEvent<LengthRequest>): void {
    if (this.#learned !== undefined) learn(this.#learned.prefills, nowUs, event);
    const effects = this.#conductor.step(nowUs, event);
    if (this.#checking) this.#conductor.check();
    for (const effect of effects) this.#perform(nowUs, effect);
    for (const effect of this.#conductor.takeStandbyEffects()) this.#performStandby(effect);
    if (this.#faulty) this.#schedule(nowUs);
  }

  /** An instance tells how it stands. */
  look(instance: InstanceIndex, standing: Parameters<Learned['transfers']['told']>[1]): void {
    this.#learned?.transfers.told(instance, standing);
  }

  /** The gateway is gone too, and its clients with it. */
  restart(nowUs: number): void {
    this.#cluster.clients.failAll(nowUs, 'Cannot generate: the gateway stopped');
    this.#conductor = this.#create(true);
    this.#schedule(nowUs);
  }

  /** @param alone it knows of no instance yet */
  #create(alone: boolean): Conductor<LengthRequest> {
    const { config, sloOf, fates } = this.#cluster;
    return createConductor(config, sloOf, this.#cluster.capacityTokens(), { alone, fates });
  }

  #schedule(nowUs: number): void {
    const { nextUs } = this.#conductor;
    if (nextUs === this.#wakeUs || nextUs === Number.POSITIVE_INFINITY) return;
    this.#wakeUs = nextUs;
    const dueUs = Math.max(nowUs, nextUs);
    this.#cluster.later(dueUs - nowUs, () => {
      if (this.#conductor.nextUs <= dueUs) this.tell(dueUs, { kind: 'wake' });
    });
  }

  #perform(nowUs: number, effect: ConductorEffect<LengthRequest>): void {
    const { config, clients, outcome, toInstance, later } = this.#cluster;
    switch (effect.kind) {
      case 'forward': {
        const { id, instance, predicted, request, decodeAt, prefix, group, incarnation, decodeIncarnation } = effect;
        request.predicted = predicted;
        clients.tried(id, request);
        this.#learned?.prefills.forwarded(instance, id, request.inputTokens);
        const event = { kind: 'submit', request, decodeAt, prefix, group, incarnation, decodeIncarnation } as const;
        // A job may be sent because another instance's step ended: whatever else ends now comes first.
        if (request.trace.batch === true) later(0, () => toInstance(instance, event));
        else toInstance(instance, event);
        break;
      }
      case 'emit':
        clients.hear(nowUs, effect.id, effect.event);
        break;
      case 'cancel':
        this.#learned?.prefills.left(effect.id);
        toInstance(effect.instance, { kind: 'cancel', id: effect.id });
        break;
      case 'askBlocks':
        toInstance(effect.instance, { kind: 'requestSnapshot' });
        break;
      case 'pin':
      case 'unpin':
        toInstance(effect.instance, effect);
        break;
      case 'roleSwitched':
      case 'pinUpdated':
        outcome.told(effect);
        break;
      case 'placed':
        config.placed?.(effect.id, effect.account);
        break;
      case 'found':
      case 'ignored':
      case 'drained':
        break;
      default:
        assertNever(effect);
    }
  }

  #performStandby(effect: StandbyEffect): void {
    const { config, toInstance, later } = this.#cluster;
    switch (effect.kind) {
      case 'migrate':
        toInstance(effect.instance, effect);
        break;
      case 'startInstance': {
        const joined = { kind: 'instanceJoined', instance: effect.instance, incarnation: 0 } as const;
        later(config.instances[effect.instance].startUs ?? 0, () => this.#cluster.join(joined));
        break;
      }
      default:
        assertNever(effect);
    }
  }
}

function learn(learned: Learned['prefills'], nowUs: number, event: ConductorEvent<LengthRequest>): void {
  if (event.kind === 'heard') learned.heard(nowUs, event.instance, event.id, event.event);
  else if (event.kind === 'prefilled') learned.prefilled(nowUs, event.id);
}
