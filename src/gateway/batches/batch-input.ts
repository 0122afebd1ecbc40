// The requests of a running batch, which are read from its input as they start.
import type { StoredBytes } from '../http/stored-bytes.ts';
import { type BatchLine, linesOf } from './batch-lines.ts';

/** No further line is read while the running lines have this many bytes. */
export const heldBytesMax = 1 << 20;

/** A line that runs. Its bytes count until it is released. */
export interface HeldLine extends BatchLine {
  release(): void;
}

/**
 * Hands out the lines of an input in order. In memory are the lines that run, of at most `heldBytesMax` bytes and one
 * line, and one piece of the input behind them.
 */
export class BatchInput {
  readonly bytes: StoredBytes;
  /** Custom ids of lines that have run. Each is deleted when its line is skipped. */
  readonly #done: Set<string>;
  #lines: ReturnType<typeof linesOf>;
  /** Where the next line starts. */
  #offset = 0;
  #heldBytes = 0;
  /** The last call of `next`: calls follow each other. */
  #turn: Promise<unknown> = Promise.resolve();
  #wake: () => void = () => {};

  /** @param done custom ids of the lines to leave out */
  constructor(bytes: StoredBytes, done: Iterable<string> = []) {
    this.bytes = bytes;
    this.#done = new Set(done);
    this.#lines = linesOf(bytes);
  }

  /** Bytes of the lines that run. */
  get heldBytes(): number {
    return this.#heldBytes;
  }

  /**
   * The next line, once those that run leave capacity; undefined behind the last one.
   * @param readsAgain called when a line cannot be read; resolves with true to read again from the same line, with false to end
   */
  next(readsAgain: (error: unknown) => Promise<boolean>): Promise<HeldLine | undefined> {
    const line = this.#turn.then(async () => {
      for (;;) {
        try {
          return await this.#next();
        } catch (error) {
          if (!(await readsAgain(error))) return undefined;
          // A generator has ended once it has thrown.
          this.#lines = linesOf(this.bytes, this.#offset);
        }
      }
    });
    this.#turn = line.catch(() => {});
    return line;
  }

  async #next(): Promise<HeldLine | undefined> {
    for (;;) {
      while (this.#heldBytes >= heldBytesMax) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
      const { value } = await this.#lines.next();
      if (value === undefined) return undefined;
      const { text, end } = value;
      // A line that was valid when its batch was created, and is not now, is read again too.
      const line: { custom_id: string; body: unknown } | undefined = text.trim() === '' ? undefined : JSON.parse(text);
      const length = end - this.#offset;
      this.#offset = end;
      if (line === undefined || this.#done.delete(line.custom_id)) continue;
      this.#heldBytes += length;
      const release = (): void => {
        this.#heldBytes -= length;
        this.#wake();
      };
      return { customId: line.custom_id, body: line.body, release };
    }
  }
}
