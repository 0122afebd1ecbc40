// The interface of page transfers between the pools of instances: inside a process, over shared memory, TCP or RDMA.
import type { LinkSnapshot } from '../../core/protocol/ports.ts';
import type { MessengerCounts } from '../../util/counts.ts';

export type { MessengerCounts };

/** Between processes: 'auto' uses shared memory on one host, else TCP; 'rdma' TCP if a side has no RDMA device. */
export type ProcessTransport = 'auto' | 'shared' | 'tcp' | 'rdma';
/** Between instances: 'memory' copies within a process, and 'auto' does so if possible. */
export type Transport = 'memory' | ProcessTransport;

/** The address of an instance's pages, and the token that senders need. */
export interface PagesAddress {
  readonly host: string;
  readonly port?: number | undefined;
  readonly token: string;
  readonly transport?: ProcessTransport | undefined;
}

/** Handle of a receive buffer, which contains its address for senders. */
export type ReceiveBufferHandle = string;

/** Copies inside a process, shared memory of two processes, TCP, or RDMA. */
export type PageTransport = NonNullable<LinkSnapshot['transport']>;

export interface Messenger {
  /** Counters of what was sent. */
  readonly counts: MessengerCounts;
  /** Address at which the pool receives pages of other processes, as HOST:PORT. */
  readonly address?: string;
  /** Number of the next step over the pool, for `send`. It counts all steps of the pool, unlike the step numbers of an instance. */
  readonly nextPoolStep: number;
  /** Opens a receive buffer: its slot i is `pages[i]` of this pool. @param layers the slots are (blocks, layers), and a step may run behind what is received */
  open(pages: Int32Array, layers?: number): ReceiveBufferHandle;
  /** Handle of the receive buffer itself, for pulls of what it has received. */
  localBuffer?(receiveBuffer: ReceiveBufferHandle): number;
  /** For `Step.arriving`: the handle of the arrivals of a receive buffer with layers, to which `blocks` blocks are sent. Valid until the buffer is closed. */
  arrivals(receiveBuffer: ReceiveBufferHandle, blocks: number): number | undefined;
  /** When it returns, nothing more is written to the pages. */
  close(receiveBuffer: ReceiveBufferHandle): void;
  /** Receive buffers that became complete since the last call. */
  received(): readonly ReceiveBufferHandle[];
  /** Receive buffers that were declared unreachable since the last call; sends to them are dropped. */
  unreachable(): readonly ReceiveBufferHandle[];
  /**
   * Sends pages to a receive buffer, in order. Descriptors are (pages, 3): layer in the order of computation, page of this pool, slot of
   * the buffer. Pages that `step` computes leave as its layers are ready; 0: at once. `last` completes the buffer. A closed buffer receives
   * nothing. @param filling pages that may be written meanwhile: they are copied first
   */
  send(
    receiveBuffer: ReceiveBufferHandle,
    step: number,
    descriptors: Int32Array,
    last: boolean,
    filling?: Int32Array,
  ): void;
  /** Drops unsent pages for a receive buffer. When it returns, no page is read for it. */
  stop(receiveBuffer: ReceiveBufferHandle): void;
  /** Number of descriptors for a receive buffer that are unsent or unacknowledged: their pages may still be read. */
  pending(receiveBuffer: ReceiveBufferHandle): number;
  /** The transport to the owner of a receive buffer; undefined until the first connection. */
  transportTo(receiveBuffer: ReceiveBufferHandle): PageTransport | undefined;
}
