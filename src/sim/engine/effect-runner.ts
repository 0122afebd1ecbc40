// Carries out the effects of instances: messages to the conductor, steps that take time, bytes that move, blocks that are read and written.

import type { LengthEffect, LengthEvent } from '../../core/instance/length-instance.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { SimulatedAttentionWorkers } from './attention-workers.ts';
import type { SimulatedExecutor } from './executor.ts';
import type { ClusterLending } from './lending/cluster-lending.ts';
import type { ClusterHost } from './simulation-config.ts';
import type { Streams } from './streams.ts';
import type { SimulatedTiers } from './tiers.ts';

interface EffectHost extends ClusterHost {
  /** (instances) */
  readonly executors: readonly SimulatedExecutor[];
  readonly streams: Streams;
  readonly tiers: SimulatedTiers;
  /** Undefined: no lending. */
  readonly lending: ClusterLending | undefined;
  /** Undefined: no instance has attention workers. */
  readonly attentionWorkers: SimulatedAttentionWorkers | undefined;
  readonly delivery: {
    sendToPeer(from: InstanceIndex, to: InstanceIndex, event: LengthEvent): void;
    sendToConductor(index: InstanceIndex, event: ConductorEvent<LengthRequest>): void;
  };
}

export class EffectRunner {
  readonly #host: EffectHost;
  /** (instances): effects are being carried out. */
  readonly #busy: Uint8Array;
  /** (instances): effects that wait for the ones before them. */
  readonly #waiting: readonly LengthEffect[][];

  constructor(host: EffectHost) {
    this.#host = host;
    this.#busy = new Uint8Array(host.config.instances.length);
    this.#waiting = host.config.instances.map(() => []);
  }

  /** Carries effects out in order. Where an effect makes the same instance act again, its new effects come after the present ones. */
  run(index: InstanceIndex, effects: readonly LengthEffect[]): void {
    const waiting = this.#waiting[index];
    if (this.#busy[index] === 1) {
      for (const effect of effects) waiting.push(effect);
      return;
    }
    this.#busy[index] = 1;
    for (const effect of effects) this.perform(index, effect);
    // The list may grow in the loop.
    for (let i = 0; i < waiting.length; i++) this.perform(index, waiting[i]);
    if (waiting.length > 0) waiting.length = 0;
    this.#busy[index] = 0;
  }

  perform(index: InstanceIndex, effect: LengthEffect): void {
    const { executors, streams, tiers, lending, delivery } = this.#host;
    switch (effect.kind) {
      case 'emit':
      case 'kvEvents':
      case 'prefilled':
      case 'released':
      case 'outgrows':
      case 'migrated':
      case 'snapshot':
      case 'pinUpdated':
      case 'report':
        delivery.sendToConductor(index, conductorMessage(index, effect));
        break;
      case 'runStep':
        this.#runStep(index, effect);
        break;
      case 'endStepRun':
        executors[index].endStepRun();
        break;
      case 'abortStep':
        executors[index].abort();
        break;
      case 'send':
        if (effect.message.kind === 'cancelPrefix') executors[index].cancelWait(effect.message.id, effect.to);
        delivery.sendToPeer(index, effect.to, { kind: 'peer', from: index, message: effect.message });
        break;
      case 'stream':
      case 'sendActivations':
      case 'streamPrefix':
      case 'stopStream':
      case 'haltStream':
        streams.perform(index, effect);
        break;
      case 'lending':
      case 'moveBlocks':
      case 'fillBlocks':
      case 'stopMove':
      case 'copyHome':
      case 'lendBlocks':
      case 'takeBackBlocks':
        lending?.perform(index, effect);
        break;
      case 'readSsd':
        executors[index].blocksArriving(effect.id, 'ssd', effect.to);
        tiers.read(index, effect);
        break;
      case 'writeSsd':
        tiers.write(index, effect);
        break;
      case 'compileGrammar':
      case 'releaseGrammar':
        throw new Error(`Cannot carry out ${effect.kind}: simulated requests have no grammars`);
      case 'fault':
        throw new Error(effect.message);
      default:
        checkWithoutContents(effect);
    }
  }

  #runStep(index: InstanceIndex, effect: Extract<LengthEffect, { kind: 'runStep' }>): void {
    const { executors, tiers, lending, attentionWorkers, instances, queue } = this.#host;
    const executor = executors[index];
    executor.waitForBlocks(instances[index].components.prefixes.pendingBlocks(queue.nowUs));
    if (lending === undefined) executor.run(effect);
    else lending.run(index, effect);
    tiers.stepStarted(index, effect, executor.exposedUs);
    attentionWorkers?.stepStarted(index);
  }
}

type Reported = Extract<
  LengthEffect,
  | { kind: 'emit' | 'kvEvents' | 'prefilled' | 'released' | 'outgrows' }
  | { kind: 'migrated' | 'snapshot' | 'pinUpdated' | 'report' }
>;

function conductorMessage(instance: InstanceIndex, effect: Reported): ConductorEvent<LengthRequest> {
  switch (effect.kind) {
    case 'emit':
      return { kind: 'generationEvent', instance, id: effect.id, event: effect.event };
    // Field by field: a spread takes as long as all other work on the batch.
    case 'kvEvents':
      return { kind: 'kvEvents', instance, batch: effect.batch };
    case 'prefilled':
      return { kind: 'prefilled', instance, id: effect.id };
    default:
      return { ...effect, instance };
  }
}

type ContentEffect = Extract<
  LengthEffect,
  | {
      kind:
        | 'ignored'
        | 'expectActivations'
        | 'openReceiveBuffer'
        | 'closeReceiveBuffer'
        | 'expectPrefix'
        | 'closePrefix';
    }
  | { kind: 'stopRead' | 'eraseSsd' | 'copyPrefix' | 'copyPages' | 'loadPages' | 'storePages' }
>;

/** Simulated blocks have no contents: permissions to write do nothing, and copies of contents do not occur. */
function checkWithoutContents(effect: ContentEffect): void {
  switch (effect.kind) {
    case 'ignored':
    case 'expectActivations':
    case 'openReceiveBuffer':
    case 'closeReceiveBuffer':
      break;
    case 'expectPrefix':
    case 'closePrefix':
    case 'stopRead':
    case 'eraseSsd':
    case 'copyPrefix':
    case 'copyPages':
    case 'loadPages':
    case 'storePages':
      throw new Error(`Simulation broken: ${effect.kind} moves contents, and simulated blocks have none`);
    default:
      assertNever(effect);
  }
}
