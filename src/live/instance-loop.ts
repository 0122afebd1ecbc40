// The loop of an instance's thread: messages in, machine, step, events out; JavaScript sleeps only when there is nothing to run.
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import type { InstanceEffect } from '../cluster/effects.ts';
import type { InstanceEvent } from '../cluster/messages.ts';
import type { GenerationEvent, RequestId } from '../cluster/ports.ts';
import type { TokenInstance } from '../cluster/token-work.ts';
import type { Engine } from '../engine/engine.ts';
import type { BlockJournal, BlockSnapshot, EventsMessage, ToInstance } from './protocol.ts';

type RunStep = Extract<InstanceEffect, { kind: 'runStep' }>;

export class InstanceLoop {
  readonly #machine: TokenInstance;
  readonly #engine: Pick<Engine, 'run'>;
  readonly #port: MessagePort;
  /** One word; another value than 0 stops the step in flight. The gateway's thread sets it too. */
  readonly #abort: Int32Array;
  readonly #log: (message: string) => void;
  #events: [RequestId, GenerationEvent][] = [];
  #journals: BlockJournal[] = [];
  #blocks: BlockSnapshot | undefined;
  #next: RunStep | undefined;
  /** Something changed that the gateway has not been told. */
  #changed = false;
  #closed = false;

  /** @param abort over shared memory */
  constructor(
    machine: TokenInstance,
    engine: Pick<Engine, 'run'>,
    port: MessagePort,
    abort: Int32Array,
    log: (message: string) => void,
  ) {
    this.#machine = machine;
    this.#engine = engine;
    this.#port = port;
    this.#abort = abort;
    this.#log = log;
  }

  /** Serves from now on; runs until `close`. */
  start(): void {
    this.#port.on('message', (message: ToInstance) => {
      this.#take(message);
      this.#work();
    });
  }

  #work(): void {
    for (;;) {
      // Cleared before the port is read: a cancel sent earlier is in there, one sent later sets the word again.
      Atomics.store(this.#abort, 0, 0);
      this.#drain();
      this.#post();
      const step = this.#next;
      if (step === undefined || this.#closed) return;
      this.#run(step);
    }
  }

  /** Messages that came while a step ran wait in the port, not in the event loop. */
  #drain(): void {
    for (let got = receiveMessageOnPort(this.#port); got !== undefined; got = receiveMessageOnPort(this.#port)) {
      this.#take(got.message as ToInstance);
    }
  }

  #take(message: ToInstance): void {
    if (message.kind !== 'close') {
      this.#feed(message);
      return;
    }
    this.#closed = true;
    this.#port.close();
  }

  #run(step: RunStep): void {
    this.#next = undefined;
    const ended = this.#execute(step);
    // Cancels first, or an aborted step would be planned again with those who left.
    this.#drain();
    this.#feed(ended);
  }

  #execute({ step, plan }: RunStep): InstanceEvent {
    try {
      const outcome = this.#engine.run(plan, this.#abort);
      return outcome.kind === 'done'
        ? { kind: 'stepDone', step, result: outcome.result }
        : { kind: 'stepAborted', step };
    } catch (error) {
      return { kind: 'stepFailed', step, message: error instanceof Error ? error.message : String(error) };
    }
  }

  #feed(event: InstanceEvent): void {
    this.#changed = true;
    for (const effect of this.#machine.step(nowUs(), event)) {
      // A request often ends by itself while its cancel is under way: nothing is wrong.
      if (effect.kind === 'ignored' && event.kind === 'cancel') continue;
      this.#carryOut(effect);
    }
  }

  #carryOut(effect: InstanceEffect): void {
    switch (effect.kind) {
      case 'emit':
        this.#events.push([effect.id, effect.event]);
        break;
      case 'runStep':
        this.#next = effect;
        break;
      case 'abortStep':
        Atomics.store(this.#abort, 0, 1);
        break;
      case 'endRun':
        // Every run is one step long here.
        break;
      case 'journal':
        this.#journals.push(copyOf(effect.journal));
        break;
      case 'snapshot':
        this.#blocks = effect.snapshot;
        break;
      case 'report':
        // A thread that ends says so: nobody waits for reports.
        break;
      case 'ignored':
      case 'fault':
        this.#log(effect.message);
        break;
      case 'send':
      case 'stream':
      case 'pass':
      case 'streamPrefix':
      case 'stopStream':
      case 'prefilled':
      case 'letGo':
      case 'pinTold':
        // An instance that stands alone prefills and decodes.
        throw new Error(`Cannot carry out ${effect.kind}: there is no other instance`);
    }
  }

  /** One message for all that a turn brought; without events only before the thread sleeps. */
  #post(): void {
    const news = this.#events.length > 0 || (this.#changed && this.#next === undefined);
    if (!news || this.#closed) return;
    this.#changed = false;
    const message: EventsMessage = {
      kind: 'events',
      events: this.#events,
      snapshot: this.#machine.snapshot(),
      journals: this.#journals,
      blocks: this.#blocks,
    };
    this.#port.postMessage(message);
    this.#events = [];
    this.#journals = [];
    this.#blocks = undefined;
  }
}

/** Its arrays are the machine's, used again for the next one. */
function copyOf({ life, number, changes, words, stored }: BlockJournal): BlockJournal {
  const width = words.length / stored.length;
  return { life, number, changes, words: words.slice(0, changes * width), stored: stored.slice(0, changes) };
}

function nowUs(): number {
  return Math.round(performance.now() * 1000);
}
