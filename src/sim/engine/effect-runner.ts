// Carries out what instances want of a simulated cluster: steps that take time, bytes that move, blocks that are read and written.

import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { AwaitedBlocks } from '../../core/transfer/prefix-fetch/prefix-loads.ts';
import type { ClusterLending } from '../lending/cluster-lending.ts';
import type { SimulatedExecutor } from './executor.ts';
import type { Streams } from './streams.ts';
import type { SimulatedTiers } from './tiers.ts';

interface Parts {
  /** (instances) */
  readonly executors: readonly SimulatedExecutor[];
  readonly streams: Streams;
  readonly tiers: SimulatedTiers;
}

/** The simulation, as those see it who carry out. */
interface Owner {
  readonly post: (from: InstanceIndex, to: InstanceIndex, event: LengthEvent) => void;
  /** What the step that an instance begins has to wait for. */
  readonly awaited: (nowUs: number, index: InstanceIndex) => readonly AwaitedBlocks[];
  /** Undefined: nobody lends. */
  readonly lending: () => ClusterLending | undefined;
}

export class EffectRunner {
  readonly #parts: Parts;
  readonly #owner: Owner;

  constructor(parts: Parts, owner: Owner) {
    this.#parts = parts;
    this.#owner = owner;
  }

  perform(nowUs: number, index: InstanceIndex, effect: InstanceEffect<undefined, LengthRequest>): void {
    const { executors, streams, tiers } = this.#parts;
    const lending = this.#owner.lending();
    switch (effect.kind) {
      case 'runStep':
        executors[index].await(nowUs, this.#owner.awaited(nowUs, index));
        if (lending === undefined) executors[index].run(nowUs, effect);
        else lending.run(nowUs, index, effect);
        tiers.ran(index, effect, executors[index].exposedUs);
        break;
      case 'endRun':
        executors[index].endRun(nowUs);
        break;
      case 'send':
        if (effect.message.kind === 'unwanted') executors[index].forget(effect.message.id, effect.to);
        this.#owner.post(index, effect.to, { kind: 'peer', from: index, message: effect.message });
        break;
      case 'stream':
        streams.handOff(nowUs, index, effect, executors[index].endsUs);
        break;
      case 'lending':
      case 'moveBlocks':
      case 'fillBlocks':
      case 'stopMove':
        lending?.perform(nowUs, index, effect);
        break;
      case 'pass':
      case 'streamPrefix':
      case 'stopStream':
      case 'haltStream':
        streams.carry(nowUs, index, effect);
        break;
      case 'readSsd':
        executors[index].began(nowUs, effect.id, 'ssd', effect.to);
        tiers.read(nowUs, index, effect);
        break;
      case 'writeSsd':
        tiers.write(nowUs, index, effect);
        break;
      case 'abortStep':
        executors[index].abort(nowUs);
        break;
      case 'fault':
        throw new Error(effect.message);
      case 'expectPrefix':
      case 'closePrefix':
      case 'stopRead':
      case 'eraseSsd':
      case 'copyPrefix':
      case 'copyPages':
      case 'loadPages':
        throw new Error(`Simulation broken: blocks have no contents here: ${effect.kind}`);
    }
  }
}
