// The pool that rows of the residual stream go over from member to member of a group: rooms for chunks, some for what leaves and the others for what comes.
import type { ReceiveBufferHandle } from '../transfer/messenger.ts';

/** What members of a group tell each other about rows. Numbers are the sender's, for as long as the two know each other. */
export type ActivationWire =
  /** To the next member, when the step over this chunk begins, and again when it begins anew: it comes to that landing, or, without one, to where it is told. */
  | {
      readonly kind: 'activations';
      readonly number: number;
      readonly id: string;
      readonly chunk: { readonly from: number; readonly tokens: number; readonly cachedTokens: number };
      readonly landing: ReceiveBufferHandle | undefined;
    }
  /** Back: room for the chunk of that number, or, without one, for whichever is next. */
  | { readonly kind: 'activationsBuffer'; readonly number: number | undefined; readonly landing: ReceiveBufferHandle }
  /** Back: nobody wants the chunk of that number, which waits for room. */
  | { readonly kind: 'activationsCancelled'; readonly number: number };

/** Float32 pages that native threads send and programs read and write. */
export interface ActivationMemory {
  readonly pool: number;
  /** Chunks that have room: the first are for what leaves. */
  readonly sendBuffers: number;
  readonly receiveBuffers: number;
  /** Of the longest chunk. */
  readonly chunkPages: number;
  readonly pageValues: number;
  /** Of a row. */
  readonly rowValues: number;
  /** Rows to their pages, as a program leaves them there. */
  write(pages: Int32Array, rows: Float32Array): void;
}

/** Rooms that are free, by their first pages; the lowest is taken first, so that no more memory is touched than is used at once. */
export class BufferPool {
  readonly #free: number[];
  readonly #chunkPages: number;

  constructor(first: number, rooms: number, chunkPages: number) {
    this.#chunkPages = chunkPages;
    this.#free = Array.from({ length: rooms }, (_, i) => (first + i) * chunkPages);
  }

  get free(): number {
    return this.#free.length;
  }

  /** All pages of a room. */
  take(): Int32Array | undefined {
    const first = this.#free.shift();
    return first === undefined ? undefined : Int32Array.from({ length: this.#chunkPages }, (_, i) => first + i);
  }

  release([first]: Int32Array): void {
    const at = this.#free.findIndex((page) => page > first);
    this.#free.splice(at < 0 ? this.#free.length : at, 0, first);
  }
}

/** The tokens of a prompt that it holds. */
export interface ChunkRange {
  readonly from: number;
  readonly tokens: number;
}

/** Of a room, what so many tokens take. @throws Error where the chunk is longer than any may be */
export function pagesOfChunk(
  { chunkPages, rowValues: columns, pageValues }: ActivationMemory,
  { from, tokens }: ChunkRange,
): number {
  const pages = Math.ceil(((tokens - from) * columns) / pageValues);
  if (pages > chunkPages)
    throw new Error(`Cannot move rows: ${tokens - from} tokens need ${pages} pages of ${chunkPages}`);
  return pages;
}
