// The buffers of activations between members of a pipeline group: fixed numbers for sending and receiving chunks.
import type { ReceiveBufferHandle } from '../transfer/messenger.ts';

/** Messages between members about activations. The sender numbers its chunks. */
export type ActivationWire =
  /** To the next member, when the step over the chunk starts or restarts. No `receiveBuffer`: the sender has none yet. */
  | {
      readonly kind: 'activations';
      readonly number: number;
      readonly id: string;
      readonly chunk: { readonly from: number; readonly tokens: number; readonly cachedTokens: number };
      readonly receiveBuffer: ReceiveBufferHandle | undefined;
    }
  /** Back: a receive buffer for the chunk of that number, or for any next chunk. */
  | {
      readonly kind: 'activationsBuffer';
      readonly number: number | undefined;
      readonly receiveBuffer: ReceiveBufferHandle;
    }
  /** Back: the chunk of that number, which waits for a buffer, is not needed. */
  | { readonly kind: 'activationsCancelled'; readonly number: number };

/** Float32 pages that programs read and write and native threads send. */
export interface ActivationMemory {
  readonly pool: number;
  /** Buffers for sent chunks, which come first, and for received chunks. */
  readonly sendBuffers: number;
  readonly receiveBuffers: number;
  /** Pages of the longest chunk. */
  readonly chunkPages: number;
  readonly pageValues: number;
  /** Values in a row. */
  readonly rowValues: number;
  /** Writes rows to pages in the layout of a program. */
  write(pages: Int32Array, rows: Float32Array): void;
}

/** Free buffers by first page. The lowest is taken first, so that the touched memory stays minimal. */
export class BufferPool {
  readonly #free: number[];
  readonly #chunkPages: number;

  constructor(first: number, buffers: number, chunkPages: number) {
    this.#chunkPages = chunkPages;
    this.#free = Array.from({ length: buffers }, (_, i) => (first + i) * chunkPages);
  }

  get free(): number {
    return this.#free.length;
  }

  /** All pages of a free buffer; undefined if there is none. */
  take(): Int32Array | undefined {
    const first = this.#free.shift();
    return first === undefined ? undefined : Int32Array.from({ length: this.#chunkPages }, (_, i) => first + i);
  }

  release([first]: Int32Array): void {
    const at = this.#free.findIndex((page) => page > first);
    this.#free.splice(at < 0 ? this.#free.length : at, 0, first);
  }
}

/** Range of prompt tokens. */
export interface ChunkRange {
  readonly from: number;
  readonly tokens: number;
}

/** Pages of a chunk. @throws Error if it exceeds a buffer */
export function pagesOfChunk(
  { chunkPages, rowValues: columns, pageValues }: ActivationMemory,
  { from, tokens }: ChunkRange,
): number {
  const pages = Math.ceil(((tokens - from) * columns) / pageValues);
  if (pages > chunkPages)
    throw new Error(`Cannot transfer activations: ${tokens - from} tokens need ${pages} pages of ${chunkPages}`);
  return pages;
}
