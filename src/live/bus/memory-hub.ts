// Where the ends of a bus inside one process meet: deals each thread its end, keeps records, and says who has gone.
import { MessageChannel, type MessagePort } from 'node:worker_threads';
import { snapshotsKeptMs } from './bus.ts';
import { type HubWire, MemoryBus, type RecordCall, type Seat } from './memory-bus.ts';
import { MemoryRecords } from './memory-records.ts';

/** A place on the bus, for a thread. */
export interface DealtSeat {
  readonly seat: Seat;
  /** To be transferred with it. */
  readonly ports: readonly MessagePort[];
  /** Its thread has ended: the others hear what it still said, then nothing more. */
  drop(): void;
}

/** Ends have ports to one another, so that no message waits for this thread; the hub tells each of those who come and go. */
export class MemoryHub {
  /** To those who are there. */
  readonly #ports = new Map<number, MessagePort>();
  readonly #buckets = {
    records: new MemoryRecords(Number.POSITIVE_INFINITY),
    snapshots: new MemoryRecords(snapshotsKeptMs),
  };
  readonly #clock = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT);
  #seats = 0;

  /** An end on this thread, which does not keep the process alive. */
  connect(): MemoryBus {
    const { seat } = this.seat();
    const bus = new MemoryBus(seat);
    seat.hub.unref();
    return bus;
  }

  /** An end for the thread that makes a MemoryBus of it. */
  seat(): DealtSeat {
    const number = this.#seats++;
    const peers = [...this.#ports].map(([other, toOther]) => {
      const { port1, port2 } = new MessageChannel();
      toOther.postMessage({ kind: 'joined', seat: number, port: port2 } satisfies HubWire, [port2]);
      return { seat: other, port: port1 };
    });
    const { port1: own, port2: hub } = new MessageChannel();
    this.#ports.set(number, own);
    own.on('message', ({ call, ask }: RecordCall) => {
      const answer = this.#buckets[ask.bucket].answer(ask, performance.now());
      own.postMessage({ kind: 'answer', call, answer } satisfies HubWire);
    });
    own.on('close', () => this.#drop(number));
    // What is only waited for must not keep the process alive.
    own.unref();
    const ports = [hub, ...peers.map(({ port }) => port)];
    return { seat: { clock: this.#clock, hub, peers }, ports, drop: () => this.#drop(number) };
  }

  #drop(seat: number): void {
    if (!this.#ports.delete(seat)) return;
    for (const port of this.#ports.values()) port.postMessage({ kind: 'left', seat } satisfies HubWire);
  }
}
