// What carries pages of an instance's pool to others, whatever the way: native threads of this process, memory shared with others, or tcp.
import type { LinkSnapshot } from '../../core/protocol/ports.ts';
import type { MessengerCounts } from '../../util/counts.ts';

export type { MessengerCounts };

/** Between processes: 'auto' is over shared memory where both are on one host, else by tcp. */
export type ProcessTransport = 'auto' | 'shared' | 'tcp';
/** Between instances: 'memory' copies within a process, and 'auto' does so where it can. */
export type Transport = 'memory' | ProcessTransport;

/** Where an instance is reached by others that know the secret. */
export interface PagesAddress {
  readonly host: string;
  readonly port?: number | undefined;
  readonly token: string;
  readonly transport?: ProcessTransport | undefined;
}

/** Where pages land: the messenger's own name for it, which tells senders how to reach it. */
export type ReceiveBufferHandle = string;

/** Copied inside a process, over memory that two processes share, or by tcp. */
export type PageTransport = NonNullable<LinkSnapshot['transport']>;

export interface Messenger {
  /** What has left so far. */
  readonly counts: MessengerCounts;
  /** The number of the step that begins next over the pool, for `send`. */
  readonly nextStep: number;
  /** Place i of the landing is `pages[i]` of this pool. @param layers its places are (blocks, layers), and a step may compute behind what lands */
  open(pages: Int32Array, layers?: number): ReceiveBufferHandle;
  /** Of a landing by layers, only whose first `blocks` blocks come: what such a step waits for (`Step.arriving`), until it is closed. */
  arrivals(landing: ReceiveBufferHandle, blocks: number): number | undefined;
  /** Once it returns nobody writes to the landing's pages. */
  close(landing: ReceiveBufferHandle): void;
  /** Landings that have become complete since the last call. */
  received(): readonly ReceiveBufferHandle[];
  /** Landings that could not be reached for too long, since the last call: what was to go there is dropped. */
  unreachable(): readonly ReceiveBufferHandle[];
  /**
   * Sends pages to another pool's landing, in order: (parcels, 3) of layer, in the order of computation, page of this pool, place in the
   * landing. What `step` computes leaves as its layers are ready; 0: at once. With `last` the landing is complete once they are there. To
   * a landing that is closed nothing is sent. @param filling pages of them that may be written while they leave: those are copied first
   */
  send(landing: ReceiveBufferHandle, step: number, parcels: Int32Array, last: boolean, filling?: Int32Array): void;
  /** Drops what has not left for a landing. Once it returns nothing is read for it any more. */
  stop(landing: ReceiveBufferHandle): void;
  /** Parcels for a landing whose pages may still be read: those that have not left, and those that would be sent again if a connection broke. */
  pending(landing: ReceiveBufferHandle): number;
  /** How pages get to whoever has that landing; undefined: nobody there has been reached yet. */
  transportTo(landing: ReceiveBufferHandle): PageTransport | undefined;
}
