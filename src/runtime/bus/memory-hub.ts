// Where the ends of a bus inside one process meet: deals each thread its end, keeps records, and says who has gone.
import { MessageChannel, type MessagePort } from 'node:worker_threads';
import { snapshotsKeptMs } from './bus.ts';
import { type Backlog, type HubWire, MemoryBus, type RecordCall, type Seat } from './memory-bus.ts';
import { MemoryRecords } from './memory-records.ts';

/** A place on the bus, for a thread. */
export interface DealtSeat {
  readonly seat: Seat;
  /** To be transferred with it. */
  readonly ports: readonly MessagePort[];
  /** Its thread has ended: the others hear what it still said, then nothing more. */
  drop(): void;
  /** Bytes that were said to it since it has greeted others, and that it has not read. */
  readonly backlogBytes: number;
}

/** Ends have ports to one another, so that no message waits for this thread; the hub tells each of those who come and go. */
export class MemoryHub {
  /** Those who are there. */
  readonly #ends = new Map<number, { readonly port: MessagePort; readonly backlog: Backlog }>();
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
    const backlog: Backlog = new Int32Array(new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT));
    const peers = [...this.#ends].map(([other, end]) => {
      const { port1, port2 } = new MessageChannel();
      end.port.postMessage({ kind: 'joined', seat: number, port: port2, backlog } satisfies HubWire, [port2]);
      return { seat: other, port: port1, backlog: end.backlog };
    });
    const { port1: own, port2: hub } = new MessageChannel();
    this.#ends.set(number, { port: own, backlog });
    own.on('message', ({ call, ask }: RecordCall) => {
      const answer = this.#buckets[ask.bucket].answer(ask, performance.now());
      own.postMessage({ kind: 'answer', call, answer } satisfies HubWire);
    });
    own.on('close', () => this.#drop(number));
    // What is only waited for must not keep the process alive.
    own.unref();
    const ports = [hub, ...peers.map(({ port }) => port)];
    return {
      seat: { clock: this.#clock, backlog, hub, peers },
      ports,
      drop: () => this.#drop(number),
      get backlogBytes() {
        return Atomics.load(backlog, 0);
      },
    };
  }

  #drop(seat: number): void {
    if (!this.#ends.delete(seat)) return;
    for (const { port } of this.#ends.values()) port.postMessage({ kind: 'left', seat } satisfies HubWire);
  }
}
