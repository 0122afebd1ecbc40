// Finds stop strings in text that arrives in pieces, and lets no part of one out.

import { toWellFormed } from './utf8.ts';

export interface StopResult {
  /** Text that is certainly before any stop string. */
  readonly emit: string;
  /** Pushes that are out now and were not before: all their text is emitted, or a stop string cut it. */
  readonly released: number;
  /** The stop string that was completed. Nothing is emitted after it. */
  readonly stopped: string | undefined;
}

interface Node {
  readonly next: Map<number, Node>;
  readonly depth: number;
  fail: Node | undefined;
  /** Longest stop string that ends here. */
  stop: string | undefined;
}

const newNode = (depth: number): Node => ({ next: new Map(), depth, fail: undefined, stop: undefined });

/** The Aho-Corasick automaton of the stop strings, over UTF-16 code units. */
function buildAutomaton(stops: readonly string[]): Node {
  const root = newNode(0);
  for (const stop of stops) {
    let node = root;
    for (let i = 0; i < stop.length; i++) {
      const unit = stop.charCodeAt(i);
      const child = node.next.get(unit) ?? newNode(node.depth + 1);
      node.next.set(unit, child);
      node = child;
    }
    node.stop = stop;
  }
  const queue = [root];
  for (const node of queue) {
    for (const [unit, child] of node.next) {
      child.fail = node.fail === undefined ? root : advance(node.fail, unit, root);
      child.stop ??= child.fail.stop;
      queue.push(child);
    }
  }
  return root;
}

function advance(from: Node, unit: number, root: Node): Node {
  for (let node: Node | undefined = from; node !== undefined; node = node.fail) {
    const child = node.next.get(unit);
    if (child !== undefined) return child;
  }
  return root;
}

/**
 * Watches one output for stop strings. The stop string that ends first wins, and of those that end together the longest, so the
 * result does not depend on how the text is cut into pushes. Linear in the text.
 */
export class StopMatcher {
  readonly #root: Node;
  #state: Node;
  #held = '';
  #emittedChars = 0;
  /** Where the text of each push ends, in characters from the start; those before `#firstHeld` are released. */
  readonly #ends: number[] = [];
  #firstHeld = 0;
  #releasedEnd = 0;
  #pushedChars = 0;
  #stopped: string | undefined;

  /** Throws on an empty stop string. */
  constructor(stops: readonly string[]) {
    if (stops.includes('')) throw new Error('Cannot match stop strings: one of them is empty');
    this.#root = buildAutomaton(stops.map(toWellFormed));
    this.#state = this.#root;
  }

  /** UTF-16 code units emitted so far. */
  get emittedChars(): number {
    return this.#emittedChars;
  }

  get stopped(): string | undefined {
    return this.#stopped;
  }

  /** Takes the text of one token (which may be empty). After a stop it is ignored. */
  push(text: string): StopResult {
    if (this.#stopped !== undefined) return { emit: '', released: 0, stopped: this.#stopped };
    for (let i = 0; i < text.length; i++) {
      this.#state = advance(this.#state, text.charCodeAt(i), this.#root);
      const { stop } = this.#state;
      if (stop === undefined) continue;
      this.#stopped = stop;
      this.#pushedChars += i + 1;
      this.#ends.push(this.#pushedChars);
      return this.#emit(this.#held + text.slice(0, i + 1), stop.length);
    }
    this.#pushedChars += text.length;
    this.#ends.push(this.#pushedChars);
    return this.#emit(this.#held + text, this.#state.depth);
  }

  /** The output ends here: what was held is no stop string after all. */
  flush(): StopResult {
    if (this.#stopped !== undefined) return { emit: '', released: 0, stopped: this.#stopped };
    this.#state = this.#root;
    return this.#emit(this.#held, 0);
  }

  // Emits all of `text` but its last `hold` characters.
  #emit(text: string, hold: number): StopResult {
    const emit = text.slice(0, text.length - hold);
    this.#held = this.#stopped === undefined ? text.slice(emit.length) : '';
    this.#emittedChars += emit.length;
    return { emit, released: this.#release(), stopped: this.#stopped };
  }

  #release(): number {
    const out = this.#emittedChars;
    let released = 0;
    for (;;) {
      const end = this.#ends[this.#firstHeld + released];
      // The token that a stop string cuts counts as out if some of its text is.
      if (end === undefined || !(end <= out || (this.#stopped !== undefined && this.#releasedEnd < out))) break;
      this.#releasedEnd = end;
      released++;
    }
    this.#firstHeld += released;
    if (this.#firstHeld * 2 > this.#ends.length) {
      this.#ends.splice(0, this.#firstHeld);
      this.#firstHeld = 0;
    }
    return released;
  }
}
