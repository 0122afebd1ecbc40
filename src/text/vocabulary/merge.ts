// Greedy pair merging, the core of BPE and SentencePiece: a table of mergeable pairs and the merge loop.

/**
 * Maps a pair of symbol ids to the rank of its merge and the merged symbol. Open addressing in typed arrays, because a
 * vocabulary has 300,000 pairs.
 */
export class PairTable {
  readonly #mask: number;
  // (slots, 4): left + 1 (0 is a free slot), right, rank, merged.
  readonly #slots: Int32Array;

  /** @param capacity upper bound of the number of pairs */
  constructor(capacity: number) {
    let slots = 16;
    while (slots < capacity * 2) slots *= 2;
    this.#mask = slots - 1;
    this.#slots = new Int32Array(slots * 4);
  }

  /** Adds a pair unless it exists: the first rank of a pair stays. */
  add(left: number, right: number, rank: number, merged: number): void {
    const at = this.#find(left, right);
    if (this.#slots[at] !== 0) return;
    this.#slots[at] = left + 1;
    this.#slots[at + 1] = right;
    this.#slots[at + 2] = rank;
    this.#slots[at + 3] = merged;
  }

  /** A handle for `rank` and `merged`, or undefined if the pair does not merge. */
  find(left: number, right: number): number | undefined {
    const at = this.#find(left, right);
    return this.#slots[at] === 0 ? undefined : at;
  }

  rank(handle: number): number {
    return this.#slots[handle + 2] as number;
  }

  merged(handle: number): number {
    return this.#slots[handle + 3] as number;
  }

  #find(left: number, right: number): number {
    const slots = this.#slots;
    let hash = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b);
    hash ^= hash >>> 15;
    for (let slot = hash & this.#mask; ; slot = (slot + 1) & this.#mask) {
      const at = slot * 4;
      const found = slots[at];
      if (found === 0 || (found === left + 1 && slots[at + 1] === right)) return at;
    }
  }
}

// A queue entry is rank * positionsMax + position in one double: smallest rank first, then leftmost.
const positionsMax = 2 ** 27;
const none = -1;
// Capacity that is kept between calls; larger buffers are released.
const keptSymbols = 1 << 14;

/** A min-heap of numbers. */
class NumberHeap {
  readonly #items: number[] = [];

  push(value: number): void {
    const items = this.#items;
    let at = items.length;
    items.push(value);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = items[parent] as number;
      if (above <= value) break;
      items[at] = above;
      at = parent;
    }
    items[at] = value;
  }

  pop(): number | undefined {
    const items = this.#items;
    const top = items[0];
    const last = items.pop();
    if (last === undefined || items.length === 0) return last;
    const length = items.length;
    let at = 0;
    for (;;) {
      let child = at * 2 + 1;
      if (child >= length) break;
      if (child + 1 < length && (items[child + 1] as number) < (items[child] as number)) child++;
      const below = items[child] as number;
      if (below >= last) break;
      items[at] = below;
      at = child;
    }
    items[at] = last;
    return top;
  }
}

/** Merges the pair of lowest rank (leftmost first) until none is left, in O(n log n). */
export class PairMerger {
  readonly #pairs: PairTable;
  readonly #queue = new NumberHeap();
  #next = new Int32Array(keptSymbols);
  #prev = new Int32Array(keptSymbols);

  constructor(pairs: PairTable) {
    this.#pairs = pairs;
  }

  /**
   * Merges `symbols[0..count)` in place. Each remaining symbol is at the index of its first part; `visit` receives
   * these indices in order.
   */
  merge(symbols: Int32Array, count: number, visit: (index: number) => void): void {
    if (count >= positionsMax) {
      throw new Error(`Cannot tokenize text: it is too long: ${count} symbols, at most ${positionsMax - 1}`);
    }
    this.#link(count);
    for (let i = 0; i + 1 < count; i++) this.#offer(symbols, i, i + 1);
    for (let entry = this.#queue.pop(); entry !== undefined; entry = this.#queue.pop()) {
      this.#apply(symbols, count, entry);
    }
    for (let i = 0; i < count; i = this.#next[i] as number) visit(i);
    if (this.#next.length > keptSymbols) this.#resize(keptSymbols);
  }

  #resize(symbols: number): void {
    this.#next = new Int32Array(symbols);
    this.#prev = new Int32Array(symbols);
  }

  #link(count: number): void {
    if (this.#next.length < count) this.#resize(count);
    for (let i = 0; i < count; i++) {
      this.#next[i] = i + 1;
      this.#prev[i] = i - 1;
    }
  }

  #offer(symbols: Int32Array, left: number, right: number): void {
    const handle = this.#pairs.find(symbols[left] as number, symbols[right] as number);
    if (handle !== undefined) this.#queue.push(this.#pairs.rank(handle) * positionsMax + left);
  }

  // An entry may be out of date: it counts only if the pair at its position still has the same rank.
  #apply(symbols: Int32Array, count: number, entry: number): void {
    const left = entry % positionsMax;
    const right = this.#next[left] as number;
    if (right >= count || right === none) return;
    const handle = this.#pairs.find(symbols[left] as number, symbols[right] as number);
    if (handle === undefined || this.#pairs.rank(handle) !== (entry - left) / positionsMax) return;
    symbols[left] = this.#pairs.merged(handle);
    const after = this.#next[right] as number;
    this.#next[left] = after;
    this.#next[right] = none;
    if (after < count) {
      this.#prev[after] = left;
      this.#offer(symbols, left, after);
    }
    const before = this.#prev[left] as number;
    if (before !== none) this.#offer(symbols, before, left);
  }
}
