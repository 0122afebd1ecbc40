// The text of an output as it arrives, for readers that are generators: they pause where the text is not there yet.

/** A reader that yields while it waits for more text. */
export type Reading<T> = Generator<void, T, void>;

export const isSpace = (ch: string | undefined): boolean => ch !== undefined && /\s/.test(ch);

interface Span {
  readonly from: number;
  readonly to: number;
}

/** Text with a position. Text before the position is kept while a reader may go back to it. */
export class CharSource {
  #text = '';
  /** Offset of `#text` in the whole output. */
  #base = 0;
  #at = 0;
  #hasEnded = false;
  /** Text of special tokens: markers may use it, and it is no part of the answer. */
  #hidden: Span[] = [];
  /** Where the running attempts began. */
  #starts: number[] = [];

  /** Offset of the next character in the whole output. */
  get offset(): number {
    return this.#base + this.#at;
  }

  add(text: string, isHidden: boolean): void {
    const end = this.#base + this.#text.length;
    if (isHidden && text !== '') this.#hidden.push({ from: end, to: end + text.length });
    this.#text += text;
  }

  end(): void {
    this.#hasEnded = true;
  }

  /** Runs a reader; the position is where it was if the result is false. */
  *attempt(reading: Reading<boolean>): Reading<boolean> {
    const start = this.offset;
    this.#starts.push(start);
    const isRead = yield* reading;
    this.#starts.pop();
    if (!isRead) this.#at = start - this.#base;
    return isRead;
  }

  /** The attempts that run succeed: none goes back before here. */
  commit(): void {
    this.#starts = [];
  }

  /** The offset that no attempt goes back before. */
  get settled(): number {
    return Math.min(this.offset, ...this.#starts);
  }

  /** Forgets the text that no attempt goes back to. */
  release(): void {
    const count = this.settled - this.#base;
    if (count === 0) return;
    this.#text = this.#text.slice(count);
    this.#base += count;
    this.#at -= count;
    while ((this.#hidden[0]?.to ?? Number.POSITIVE_INFINITY) <= this.#base) this.#hidden.shift();
  }

  /** True if the next character belongs to a special token. */
  isHidden(): boolean {
    const { offset } = this;
    return this.#hidden.some(({ from, to }) => from <= offset && offset < to);
  }

  /** The character `ahead` characters from here; undefined after the end of the output. */
  *peek(ahead = 0): Reading<string | undefined> {
    while (this.#at + ahead >= this.#text.length) {
      if (this.#hasEnded) return undefined;
      yield;
    }
    return this.#text[this.#at + ahead];
  }

  /** The next character, which a `peek` has seen. */
  take(): string {
    return this.#text[this.#at++] ?? '';
  }

  *skipSpace(): Reading<void> {
    while (isSpace(yield* this.peek())) this.#at++;
  }

  /**
   * Moves behind the literal if it comes `ahead` characters from here. White space in it stands for any white space, or
   * none.
   */
  *accept(literal: string, ahead = 0): Reading<boolean> {
    const end = yield* this.#endOf(literal, ahead);
    if (end === undefined) return false;
    this.#at += end;
    return true;
  }

  /** Moves behind the text if exactly it comes next. */
  *acceptExactly(text: string): Reading<boolean> {
    for (let i = 0; i < text.length; i++) if ((yield* this.peek(i)) !== text[i]) return false;
    this.#at += text.length;
    return true;
  }

  /** True if the literal comes next. */
  *comes(literal: string): Reading<boolean> {
    return (yield* this.#endOf(literal, 0)) !== undefined;
  }

  *#endOf(literal: string, ahead: number): Reading<number | undefined> {
    let at = ahead;
    for (const part of literal.split(/(\s+)/)) {
      if (isSpace(part[0])) {
        while (isSpace(yield* this.peek(at))) at++;
        continue;
      }
      for (let i = 0; i < part.length; i++, at++) if ((yield* this.peek(at)) !== part[i]) return undefined;
    }
    return at;
  }
}
