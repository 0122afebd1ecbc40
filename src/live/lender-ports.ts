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

export type LenderNews = OfficeWire | FarLenderWire;

export class LenderPorts {
  readonly #near: readonly (MessagePort | undefined)[];
  readonly #isFar: boolean;
  readonly #office: MessagePort;

  constructor({ ports, office }: LenderWays) {
    this.#isFar = ports === 'others';
    this.#near = ports === 'others' ? [] : ports;
    this.#office = office;
  }

  /** Instances of this process, with this one. */
  get count(): number {
    return this.#near.length;
  }

  post(to: InstanceIndex, wire: LenderWire): void {
    if (this.#isFar) this.#office.postMessage({ instance: to, wire } satisfies FarLenderWire);
    else this.#near[to]?.postMessage(wire);
  }

  /** To whoever is gManager. */
  ask(envelope: Envelope): void {
    this.#office.postMessage(envelope);
  }

  listen(hear: (news: LenderNews) => void): void {
    for (const [instance, port] of this.#near.entries())
      port?.on('message', (wire: LenderWire) => hear({ instance, wire }));
    this.#office.on('message', hear);
  }

  /** What has come and was not heard yet. */
  drain(hear: (news: LenderNews) => void): void {
    for (const [instance, port] of this.#near.entries()) {
      if (port === undefined) continue;
      for (let got = receiveMessageOnPort(port); got !== undefined; got = receiveMessageOnPort(port))
        hear({ instance, wire: got.message as LenderWire });
    }
    for (let got = receiveMessageOnPort(this.#office); got !== undefined; got = receiveMessageOnPort(this.#office))
      hear(got.message as LenderNews);
  }

  close(): void {
    for (const port of [...this.#near, this.#office]) port?.close();
  }
}
