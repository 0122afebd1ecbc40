// Finds special tokens that are spelled out in a text.

/** Splits a text at given token texts: the leftmost first, and of those that begin together the longest. */
export class SpecialSplitter {
  readonly #ids: ReadonlyMap<string, number>;
  readonly #pattern: RegExp | undefined;

  constructor(ids: ReadonlyMap<string, number>) {
    this.#ids = ids;
    const texts = [...ids.keys()].filter((text) => text.length > 0).sort((a, b) => b.length - a.length);
    const alternatives = texts.map((text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&'));
    this.#pattern = texts.length > 0 ? new RegExp(`(${alternatives.join('|')})`, 'u') : undefined;
  }

  /** Stretches of plain text (never empty) and token ids, in order. */
  split(text: string): (string | number)[] {
    if (text.length === 0) return [];
    if (this.#pattern === undefined) return [text];
    const parts = text.split(this.#pattern);
    // With a capturing group, every second part is a separator.
    return parts.flatMap<string | number>((part, index) => {
      if (index % 2 === 0) return part.length > 0 ? [part] : [];
      return [this.#ids.get(part) as number];
    });
  }
}
