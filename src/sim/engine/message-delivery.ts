// Who hears what in a simulated cluster, and when: messages take their time, and an instance that computes may hear them only once its step ends.

import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { type FaultLayer, kept } from '../faults/fault-layer.ts';

type ToInstance = LengthEvent;
type ToConductor = ConductorEvent<LengthRequest>;

/** Instances are threads with engines, and the conductor is another one: how long messages take between them. */
export interface ThreadTimes {
  readonly toInstanceUs: number;
  /** When the conductor hears what an instance says at `nowUs`. */
  readonly heardUs: (nowUs: number, instance: InstanceIndex, said: Said) => number;
}

/** What a turn of an instance's loop brought. */
export interface Said {
  /** Of the step that has just ended; otherwise something else has happened. */
  readonly stepEnded: boolean;
  /** One of the requests that have started; undefined: none has. */
  readonly started: RequestId | undefined;
}

interface Turn {
  readonly words: (() => void)[];
  started: RequestId | undefined;
}

/** The simulation, as messages see it. */
interface Parts {
  /** Undefined: what the conductor and instances say to each other is heard at once, and instances hear while they compute. */
  readonly threads: ThreadTimes | undefined;
  readonly faults: () => FaultLayer | undefined;
  readonly instances: number;
  readonly isComputing: (instance: InstanceIndex) => boolean;
  /** Of a message between two instances that comes with so many bytes to load. */
  readonly latencyUs: (from: InstanceIndex, to: InstanceIndex, loadBytes: number) => number;
  readonly nowUs: () => number;
  readonly later: (delayUs: number, action: () => void) => void;
  readonly tellInstance: (instance: InstanceIndex, event: ToInstance) => void;
  readonly tellConductor: (event: ToConductor) => void;
}

export class MessageDelivery {
  readonly #parts: Parts;
  /** (instances): what has come while it computed. */
  readonly #unheard: readonly ToInstance[][];
  /** (instances): what it says in this turn. */
  readonly #said: readonly Turn[];
  /** (instances): when the conductor hears the latest of what it has said. */
  readonly #heardUs: Float64Array;

  constructor(parts: Parts) {
    this.#parts = parts;
    this.#unheard = Array.from({ length: parts.instances }, () => []);
    this.#said = Array.from({ length: parts.instances }, () => ({ words: [], started: undefined }));
    this.#heardUs = new Float64Array(parts.instances);
  }

  /** From one instance to another. */
  post(from: InstanceIndex, to: InstanceIndex, event: ToInstance, loadBytes = 0): void {
    const { faults, later, latencyUs, tellInstance } = this.#parts;
    const us = latencyUs(from, to, loadBytes);
    const layer = faults();
    if (layer === undefined) later(us, () => tellInstance(to, event));
    else layer.toPeer(from, to, event, us);
  }

  /** The conductor says it. */
  toInstance(index: InstanceIndex, event: ToInstance): void {
    const { faults, threads, later, tellInstance } = this.#parts;
    const layer = faults();
    if (layer !== undefined) layer.toInstance(index, event);
    else if (threads === undefined) tellInstance(index, event);
    else later(threads.toInstanceUs, () => tellInstance(index, event));
  }

  /** An instance says it. */
  toConductor(index: InstanceIndex, event: ToConductor): void {
    const { faults, threads, tellConductor } = this.#parts;
    const layer = faults();
    if (layer !== undefined) layer.toConductor(index, event);
    else if (threads === undefined) tellConductor(event);
    else {
      const told = kept(event);
      const turn = this.#said[index];
      turn.words.push(() => tellConductor(told));
      if (event.kind === 'heard' && event.event.kind === 'started') turn.started = event.id;
    }
  }

  /** Beside what it says the conductor sees this of an instance. */
  shows(index: InstanceIndex, look: () => void): void {
    if (this.#parts.threads === undefined) look();
    else this.#said[index].words.push(look);
  }

  /** All that an event brought is said: one message. */
  turnEnds(index: InstanceIndex, event: ToInstance): void {
    const { threads, nowUs, later } = this.#parts;
    const turn = this.#said[index];
    if (threads === undefined || turn.words.length === 0) return;
    const words = turn.words.splice(0);
    const said = { stepEnded: event.kind === 'stepDone', started: turn.started };
    turn.started = undefined;
    const heardUs = Math.round(threads.heardUs(nowUs(), index, said));
    this.#heardUs[index] = Math.max(heardUs, this.#heardUs[index], nowUs());
    later(this.#heardUs[index] - nowUs(), () => {
      for (const say of words) say();
    });
  }

  /** Is it heard only when the step ends? Cancels interrupt. */
  waits(index: InstanceIndex, event: ToInstance): boolean {
    const { threads, isComputing } = this.#parts;
    if (threads === undefined || event.kind === 'cancel' || !isComputing(index)) return false;
    this.#unheard[index].push(event);
    return true;
  }

  /** Its step has ended: what has come meanwhile is heard before that. */
  stepEnds(index: InstanceIndex): void {
    for (const event of this.#unheard[index].splice(0)) this.#parts.tellInstance(index, event);
  }

  /** It is gone, with what it has not heard. */
  clear(index: InstanceIndex): void {
    this.#unheard[index].length = 0;
    this.#said[index].words.length = 0;
    this.#said[index].started = undefined;
  }
}
