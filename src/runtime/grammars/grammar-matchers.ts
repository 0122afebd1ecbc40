// The instance's side of grammar threads: which thread has the matcher of a request, and the masks of a step.

import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { Grammar } from '../../core/protocol/grammar.ts';
import type { RequestId } from '../../core/protocol/ids.ts';
import { type GrammarRow, maskWords, type Step } from '../../util/step.ts';
import {
  createMaskMemory,
  type GrammarNumber,
  type MaskMemory,
  type MaskRequest,
  maskStates,
} from './grammar-protocol.ts';
import { GrammarThread } from './grammar-thread.ts';
import { keyOf } from './thread-compiler.ts';

/** The gateway has compiled the grammar within its own, shorter bound. */
const compileMsMax = 60_000;
/** A compilation goes to a thread without running requests, if there is one: masks wait until it has ended. */
const threadsMax = 3;
/** How long a step waits for masks: while their thread compiles, the other requests must go on. */
const waitMs = 2000;
const waitMsCompiling = 5;
/** Grammars whose texts are remembered for each thread. */
const numbersMax = 256;
/** Steps without an answer after which a thread counts as failed. */
const unansweredMax = 3;

interface MatcherThread {
  readonly thread: GrammarThread;
  readonly memory: MaskMemory;
  /** Grammars that it has compiled, or will, in the order of their last use. */
  readonly numbers: Map<string, GrammarNumber>;
  /** Those that it has not answered. */
  readonly compiling: Set<GrammarNumber>;
  readonly requests: Set<RequestId>;
  batch: number;
  unanswered: number;
}

interface ConstrainedRequest {
  readonly grammar: Grammar;
  readonly owner: MatcherThread;
  /** Of the grammar at its thread. */
  number: GrammarNumber;
  /** Output tokens that the thread has. */
  sent: number;
  /** Where the thread returns the mask that was requested last. */
  batch: number;
  place: number;
}

type Compiled = Extract<InstanceEvent, { kind: 'grammarCompiled' }>;

/** The mask of a row is a function of its grammar and its output: a thread that fails is replaced, and loses nothing. */
export class GrammarMatchers {
  readonly #createThread: (memory: MaskMemory, onLost: () => void) => GrammarThread;
  readonly #words: number;
  readonly #rowsMax: number;
  readonly #wake: () => void;
  readonly #threads: MatcherThread[] = [];
  readonly #requests = new Map<RequestId, ConstrainedRequest>();
  #events: Compiled[] = [];
  /** Answers that `poll` itself receives need no wake-up. */
  #isPolling = false;
  #compilations = 0;
  /** Masks of the running step. */
  readonly #start: Int32Array;
  #masks = new Uint32Array(0);

  /**
   * @param entry module of the threads @param model path of the model @param vocabulary tokens of the logits
   * @param rowsMax rows with logits of a step @param wake called when `poll` has an event, outside of `poll`
   */
  constructor(entry: URL, model: string, vocabulary: number, rowsMax: number, wake: () => void) {
    this.#createThread = (memory, onLost) => new GrammarThread({ entry, model, memory, compileMsMax, onLost });
    this.#words = maskWords(vocabulary);
    this.#rowsMax = rowsMax;
    this.#wake = wake;
    this.#start = new Int32Array(rowsMax + 1);
  }

  /** Starts a thread and reads the vocabulary, so that the first request with a grammar does not wait for them. */
  warmUp(): void {
    (this.#threads[0] ?? this.#startThread()).thread.load();
  }

  /** Answered by `poll`. */
  compile(id: RequestId, grammar: Grammar): void {
    const owner = this.#threadFor(grammar);
    const number = this.#compileAt(owner, grammar, (fault) => {
      if (!this.#requests.has(id)) return;
      this.#events.push({ kind: 'grammarCompiled', id, fault });
      if (!this.#isPolling) this.#wake();
    });
    this.#requests.set(id, { grammar, owner, number, sent: 0, batch: 0, place: 0 });
    owner.requests.add(id);
  }

  release(id: RequestId): void {
    const owner = this.#requests.get(id)?.owner;
    this.#requests.delete(id);
    owner?.requests.delete(id);
    owner?.thread.release(id);
  }

  poll(): readonly Compiled[] {
    this.#isPolling = true;
    try {
      for (const { thread } of this.#threads) thread.poll();
    } finally {
      this.#isPolling = false;
    }
    const events = this.#events;
    if (events.length > 0) this.#events = [];
    return events;
  }

  /** The step with the masks of its rows, and the sequences with masks that are not ready. */
  masked(step: Step): { readonly step: Step; readonly unmasked: Int32Array | undefined } {
    const rows = step.grammarRows;
    if (rows === undefined) return { step, unmasked: undefined };
    const ready = this.#collect(rows);
    let end = 0;
    let next = 0;
    for (let row = 0; row < step.logitRows.length; row++) {
      this.#start[row] = end;
      if (rows[next]?.row !== row) continue;
      end += ready[next] ? this.#words : 0;
      next++;
    }
    this.#start[step.logitRows.length] = end;
    const start = this.#start.subarray(0, step.logitRows.length + 1);
    const masks = { start, words: this.#masks.subarray(0, end) };
    const unmasked = rows.filter((_, i) => !ready[i]).map(({ sequence }) => sequence);
    return {
      step: { ...step, sampling: { ...step.sampling, masks } },
      unmasked: unmasked.length > 0 ? Int32Array.from(unmasked) : undefined,
    };
  }

  /** Ends the threads: others take their place, and compute the same masks. */
  replaceThreads(why: string): void {
    for (const { thread } of this.#threads) thread.fail(why);
  }

  async close(): Promise<void> {
    await Promise.all(this.#threads.map(({ thread }) => thread.close()));
  }

  /** Requests the masks of the next step. @param tokens (logitRows): sampled by this step */
  sampled({ grammarRows = [] }: Step, tokens: Int32Array, unmasked?: Int32Array): void {
    const masked = grammarRows.filter(({ sequence }) => unmasked?.includes(sequence) !== true);
    const rows = masked.map(({ row, request, output }) => {
      return { request, length: output.length + 1, since: (from: number) => extended(output, from, tokens[row]) };
    });
    this.#request(rows);
  }

  /** Copies the masks that are ready to `#masks`, without gaps; true for each row that has one. */
  #collect(rows: readonly GrammarRow[]): readonly boolean[] {
    const isRequested = ({ request, output }: GrammarRow): boolean => {
      const { owner, sent, batch } = this.#known(request);
      return sent === output.length && batch > 0 && batch === owner.batch;
    };
    const others = new Set(rows.filter((row) => !isRequested(row)).map(({ request }) => this.#known(request).owner));
    const missing = rows.filter(({ request }) => others.has(this.#known(request).owner));
    this.#request(
      missing.map(({ request, output }) => {
        return { request, length: output.length, since: (from: number) => output.slice(from) };
      }),
    );
    const owners = new Map<MatcherThread, boolean>();
    for (const { request } of rows) {
      const { owner } = this.#known(request);
      if (!owners.has(owner)) owners.set(owner, this.#answers(owner));
    }
    if (this.#masks.length < rows.length * this.#words) this.#masks = new Uint32Array(2 * rows.length * this.#words);
    let end = 0;
    return rows.map(({ request }) => {
      const { owner, place } = this.#known(request);
      if (owners.get(owner) !== true) return false;
      const state = owner.memory.control[1 + place];
      if (state === maskStates.unknown) {
        this.#compileAgain(request);
        return false;
      }
      const own = owner.memory.masks.subarray(place * this.#words, (place + 1) * this.#words);
      if (state === maskStates.contradiction) this.#masks.fill(0, end, end + this.#words);
      else this.#masks.set(own, end);
      end += this.#words;
      return true;
    });
  }

  /** Requests masks after `length` output tokens each; `since` gives those from an index on. */
  #request(
    rows: readonly { readonly request: RequestId; readonly length: number; since(from: number): Int32Array }[],
  ): void {
    const batches = new Map<MatcherThread, MaskRequest[]>();
    for (const { request, length, since } of rows) {
      const known = this.#requests.get(request);
      if (known === undefined) continue;
      const { owner, number } = known;
      const batch = batches.get(owner) ?? [];
      batches.set(owner, batch);
      // A token whose step did not count is taken back.
      if (known.sent > length) known.sent = 0;
      known.place = batch.length;
      known.batch = owner.batch + 1;
      batch.push({ request, grammar: number, from: known.sent, tokens: since(known.sent) });
      known.sent = length;
    }
    for (const [owner, batch] of batches) owner.thread.requestMasks(++owner.batch, batch);
  }

  #known(request: RequestId): ConstrainedRequest {
    const known = this.#requests.get(request);
    if (known === undefined) throw new Error(`Cannot run a step: request ${request} has no matcher`);
    return known;
  }

  /** True if the thread answers its last batch in time. */
  #answers(owner: MatcherThread): boolean {
    const { thread, memory, batch } = owner;
    const { isCompiling } = thread;
    if (hasAnswered(memory.control, batch, isCompiling ? waitMsCompiling : waitMs)) {
      owner.unanswered = 0;
      return true;
    }
    if (!isCompiling && ++owner.unanswered >= unansweredMax) thread.fail('its thread does not answer');
    return false;
  }

  /** The thread of the request has lost its grammar or its matcher. */
  #compileAgain(id: RequestId): void {
    const known = this.#requests.get(id);
    if (known === undefined) return;
    known.sent = 0;
    known.batch = 0;
    const { owner, grammar, number } = known;
    if (owner.compiling.has(number)) return;
    const key = keyOf(grammar);
    if (owner.numbers.get(key) === number) owner.numbers.delete(key);
    known.number = this.#compileAt(owner, grammar, () => {});
  }

  /** A thread that still has the grammar answers at once. */
  #compileAt(owner: MatcherThread, grammar: Grammar, done: (fault: string | undefined) => void): GrammarNumber {
    const { numbers, compiling, thread } = owner;
    const key = keyOf(grammar);
    const number = numbers.get(key) ?? ++this.#compilations;
    numbers.delete(key);
    numbers.set(key, number);
    for (const oldest of numbers.keys()) {
      if (numbers.size <= numbersMax) break;
      numbers.delete(oldest);
    }
    compiling.add(number);
    const onAnswer = (fault: string | undefined): void => {
      compiling.delete(number);
      done(fault);
    };
    thread.compile({ number, grammar, keeps: true, done: onAnswer });
    return number;
  }

  /** A thread that has the grammar, else one without requests, else a new one, else the one with the fewest requests. */
  #threadFor(grammar: Grammar): MatcherThread {
    const key = keyOf(grammar);
    const known = this.#threads.find(({ numbers }) => numbers.has(key));
    const idle = known ?? this.#threads.find(({ requests }) => requests.size === 0);
    if (idle !== undefined) return idle;
    if (this.#threads.length < threadsMax) return this.#startThread();
    return this.#threads.reduce((best, each) => (each.requests.size < best.requests.size ? each : best));
  }

  #startThread(): MatcherThread {
    const memory = createMaskMemory(this.#rowsMax, this.#words);
    const own: MatcherThread = {
      thread: this.#createThread(memory, () => this.#lost(own)),
      ...{ memory, numbers: new Map(), compiling: new Set(), requests: new Set(), batch: 0, unanswered: 0 },
    };
    this.#threads.push(own);
    return own;
  }

  /** Its successor has no grammars: it answers `unknown`, and they are compiled again. */
  #lost({ requests, numbers }: MatcherThread): void {
    numbers.clear();
    for (const id of requests) {
      const known = this.#requests.get(id);
      if (known === undefined) continue;
      known.sent = 0;
      known.batch = 0;
    }
  }
}

/** The output from an index on, and the token after it. */
function extended(output: Int32Array, from: number, token: number): Int32Array {
  const tokens = new Int32Array(output.length + 1 - from);
  tokens.set(output.subarray(from));
  tokens[tokens.length - 1] = token;
  return tokens;
}

/** Waits until the thread has answered a batch. */
function hasAnswered(control: Int32Array, batch: number, withinMs: number): boolean {
  const endMs = performance.now() + withinMs;
  for (;;) {
    const answered = Atomics.load(control, 0);
    if (answered === batch) return true;
    const leftMs = endMs - performance.now();
    if (leftMs <= 0) return false;
    Atomics.wait(control, 0, answered, leftMs);
  }
}
