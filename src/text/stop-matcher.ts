// Finds stop strings in streamed text and emits no part of one.

import { toWellFormed } from './utf8.ts';

export interface StopResult {
  /** Text that is final: before any possible stop string. */
  readonly emit: string;
  /** The completed stop string. Nothing is emitted after it. */
  readonly stopped: string | undefined;
}

interface Node {
  readonly next: Map<number, Node>;
  readonly depth: number;
  fail: Node | undefined;
  /** Longest stop string that ends at this node. */
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
 * Searches one output for stop strings. The stop string that ends first wins, and of several with the same end the
 * longest, so the result does not depend on how the text is split into pushes. Linear in the text.
 */
export class StopMatcher {
  readonly #root: Node;
  #state: Node;
  #held = '';
  #emittedChars = 0;
  #stopped: string | undefined;

  /** @throws Error for an empty stop string */
  constructor(stops: readonly string[] | StopMatcher) {
    if (stops instanceof StopMatcher) this.#root = stops.#root;
    else {
      if (stops.includes('')) throw new Error('Cannot match stop strings: one of them is empty');
      this.#root = buildAutomaton(stops.map(toWellFormed));
    }
    this.#state = this.#root;
  }

  /** A matcher of the same stop strings for another output; both share the automaton. */
  fresh(): StopMatcher {
    return new StopMatcher(this);
  }

  /** UTF-16 code units emitted so far. */
  get emittedChars(): number {
    return this.#emittedChars;
  }

  get stopped(): string | undefined {
    return this.#stopped;
  }

  /** Processes the text of one token, which may be empty. Text after a stop is ignored. */
  push(text: string): StopResult {
    if (this.#stopped !== undefined) return { emit: '', stopped: this.#stopped };
    for (let i = 0; i < text.length; i++) {
      this.#state = advance(this.#state, text.charCodeAt(i), this.#root);
      const { stop } = this.#state;
      if (stop === undefined) continue;
      this.#stopped = stop;
      return this.#emit(this.#held + text.slice(0, i + 1), stop.length);
    }
    return this.#emit(this.#held + text, this.#state.depth);
  }

  /** Ends the output: the held text is not a stop string and is emitted. */
  flush(): StopResult {
    if (this.#stopped !== undefined) return { emit: '', stopped: this.#stopped };
    this.#state = this.#root;
    return this.#emit(this.#held, 0);
  }

  // Emits all of `text` except its last `hold` characters.
  #emit(text: string, hold: number): StopResult {
    const emit = text.slice(0, text.length - hold);
    this.#held = this.#stopped === undefined ? text.slice(emit.length) : '';
    this.#emittedChars += emit.length;
    return { emit, stopped: this.#stopped };
  }
}
