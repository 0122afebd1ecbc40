// How an instance's thread speaks with the others that lend, and with the gManager: over ports inside a process, or one port to the links with other processes.
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import type { Envelope } from '../cluster/lending/messages.ts';
import type { InstanceEvent, InstanceIndex } from '../cluster/messages.ts';
import type { LenderWire } from './lender-wire.ts';

export interface LenderWays {
  readonly instance: InstanceIndex;
  /** (instances); `others`: they are in other processes, and `office` leads to all of them. */
  readonly ports: readonly (MessagePort | undefined)[] | 'others';
  /** To the gManager. */
  readonly office: MessagePort;
}

/** What instances hear of their process: a gManager's word, and who comes and goes. */
export type OfficeWire = Extract<InstanceEvent, { kind: 'lending' | 'instanceLost' | 'creditorCut' | 'lenders' }>;

/** To an instance of another process, or from it. */
export interface FarLenderWire {
  readonly instance: InstanceIndex;
  readonly wire: LenderWire;
}

/** An instance of this process has been started anew, and is reached over this port now. */
export interface NewLender {
  readonly kind: 'newLender';
  readonly instance: InstanceIndex;
  readonly port: MessagePort;
}

export type LenderNews = OfficeWire | FarLenderWire;
type Hear = (news: LenderNews) => void;

/** Whoever is gone for less than this may come back, and requests that need its memory wait. */
export const patienceMs = 30_000;

export class LenderPorts {
  readonly #near: (MessagePort | undefined)[];
  readonly #isFar: boolean;
  readonly #office: MessagePort;
  readonly #greeting: LenderWire;
  #hear: Hear = () => {};

  /** @param greeting what every instance of this process hears first */
  constructor({ ports, office }: LenderWays, greeting: LenderWire) {
    this.#isFar = ports === 'others';
    this.#near = ports === 'others' ? [] : [...ports];
    this.#office = office;
    this.#greeting = greeting;
    for (const port of this.#near) port?.postMessage(greeting);
  }

  post(to: InstanceIndex, wire: LenderWire): void {
    if (this.#isFar) this.#office.postMessage({ instance: to, wire } satisfies FarLenderWire);
    else this.#near[to]?.postMessage(wire);
  }

  /** To whoever is gManager. */
  ask(envelope: Envelope): void {
    this.#office.postMessage(envelope);
  }

  listen(hear: Hear): void {
    this.#hear = hear;
    for (const [instance, port] of this.#near.entries()) if (port !== undefined) this.#listenTo(instance, port);
    this.#office.on('message', (news: LenderNews | NewLender) => this.#hearOffice(news, hear));
  }

  #listenTo(instance: InstanceIndex, port: MessagePort): void {
    port.on('message', (wire: LenderWire) => this.#hear({ instance, wire }));
    // A port that is closing is not to be read.
    port.on('close', () => {
      if (this.#near[instance] === port) this.#near[instance] = undefined;
    });
  }

  #hearOffice(news: LenderNews | NewLender, hear: Hear): void {
    if (!isNewLender(news)) {
      hear(news);
      return;
    }
    const { instance, port } = news;
    this.#near[instance]?.close();
    this.#near[instance] = port;
    port.postMessage(this.#greeting);
    this.#listenTo(instance, port);
  }

  /** What has come and was not heard yet. */
  drain(hear: Hear): void {
    for (const [instance, port] of this.#near.entries()) {
      if (port === undefined) continue;
      for (let got = receiveMessageOnPort(port); got !== undefined; got = receiveMessageOnPort(port))
        hear({ instance, wire: got.message as LenderWire });
    }
    for (let got = receiveMessageOnPort(this.#office); got !== undefined; got = receiveMessageOnPort(this.#office))
      this.#hearOffice(got.message as LenderNews | NewLender, hear);
  }

  close(): void {
    for (const port of [...this.#near, this.#office]) port?.close();
  }
}

function isNewLender(news: LenderNews | NewLender): news is NewLender {
  return 'kind' in news && news.kind === 'newLender';
}
