// The hub of a bus inside one process: creates the endpoint of each thread, keeps records, and announces joins and drops.
import { MessageChannel, type MessagePort } from 'node:worker_threads';
import { snapshotsKeptMs } from './bus.ts';
import { type Backlog, type BusEndpoint, type HubMessage, MemoryBus, type RecordCall } from './memory-bus.ts';
import { MemoryRecords } from './memory-records.ts';

/** The endpoint of a thread, for the thread's owner. */
export interface EndpointHandle {
  readonly endpoint: BusEndpoint;
  /** To be transferred with it. */
  readonly transferList: readonly MessagePort[];
  /** Called once the thread has ended: the others receive what it published before, then nothing more. */
  drop(): void;
  /** Bytes sent to the endpoint since it announced its subscriptions, and not yet read by it. */
  readonly backlogBytes: number;
}

/** Endpoints connect directly to one another, so that messages do not wait for this thread; the hub announces joins and drops. */
export class MemoryHub {
  /** By id, the endpoints not yet dropped. */
  readonly #endpoints = new Map<number, { readonly port: MessagePort; readonly backlog: Backlog }>();
  readonly #buckets = {
    records: new MemoryRecords(Number.POSITIVE_INFINITY),
    snapshots: new MemoryRecords(snapshotsKeptMs),
  };
  readonly #clock = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT);
  #created = 0;

  /** A bus on this thread, which does not keep the process alive. */
  connect(): MemoryBus {
    const { endpoint } = this.createEndpoint();
    const bus = new MemoryBus(endpoint);
    endpoint.hub.unref();
    return bus;
  }

  /** An endpoint from which another thread constructs its MemoryBus. */
  createEndpoint(): EndpointHandle {
    const id = this.#created++;
    const backlog: Backlog = new Int32Array(new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT));
    const peers = [...this.#endpoints].map(([other, { port, backlog: otherBacklog }]) => {
      const { port1, port2 } = new MessageChannel();
      port.postMessage({ kind: 'joined', id, port: port2, backlog } satisfies HubMessage, [port2]);
      return { id: other, port: port1, backlog: otherBacklog };
    });
    const { port1: own, port2: hub } = new MessageChannel();
    this.#endpoints.set(id, { port: own, backlog });
    own.on('message', ({ call, request }: RecordCall) => {
      const result = this.#buckets[request.bucket].handle(request, performance.now());
      own.postMessage({ kind: 'response', call, result } satisfies HubMessage);
    });
    own.on('close', () => this.#drop(id));
    // The hub alone does not keep the process alive.
    own.unref();
    return {
      endpoint: { clock: this.#clock, backlog, hub, peers },
      transferList: [hub, ...peers.map(({ port }) => port)],
      drop: () => this.#drop(id),
      get backlogBytes() {
        return Atomics.load(backlog, 0);
      },
    };
  }

  #drop(id: number): void {
    if (!this.#endpoints.delete(id)) return;
    for (const { port } of this.#endpoints.values()) port.postMessage({ kind: 'left', id } satisfies HubMessage);
  }
}
