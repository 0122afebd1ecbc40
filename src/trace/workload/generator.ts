// A workload from its description and a seed: an endless stream of requests in constant memory.

import { Prng } from '../../util/prng.ts';
import type { TraceRequest } from '../request.ts';
import { ArrivalClock, type Arrivals } from './arrivals.ts';
import { BlockNames, type Prefixes } from './block-names.ts';
import { type DrawnLengths, drawer, type Lengths, type LengthTable, meanOf } from './lengths.ts';

export interface Sessions {
  /** Mean number of requests of a session, at least 1; geometrically distributed. */
  readonly turns: number;
  /** Tokens that the user adds to the last prompt and its output. */
  readonly newTokens: Lengths;
  /** Mean time from the last output token to the next prompt; exponentially distributed. */
  readonly thinkSeconds: number;
  /** Assumed output time per token: the generator does not receive the answers. */
  readonly answerMsPerToken: number;
}

export interface Workload {
  /** The rate counts requests; sessions arrive at this rate divided by their turns. */
  readonly arrivals: Arrivals;
  /** Lengths of a request, or of the first request of a session. */
  readonly lengths: DrawnLengths | LengthTable;
  /** A share of the requests, or sessions, with other lengths. */
  readonly long: { readonly share: number; readonly lengths: DrawnLengths } | undefined;
  readonly prefixes: Prefixes | undefined;
  readonly sessions: Sessions | undefined;
  /** Phases of different load that repeat. Undefined: the load is stationary. */
  readonly phases?: readonly Phase[] | undefined;
  /** Maximum of prompt plus output. Longer prompts are truncated, and a session ends before it. */
  readonly contextTokens: number;
}

export interface Phase {
  readonly seconds: number;
  /** Factor on the rate of requests. */
  readonly times: number;
  readonly lengths: DrawnLengths;
}

interface Pair {
  readonly input: number;
  readonly output: number;
}

const streams = { arrivals: 1, lengths: 2, kinds: 3, families: 4, turns: 5 };

/** A pure function of (workload, seed, block size). Its only state is the sessions under way. */
export class WorkloadGenerator {
  readonly #workload: Workload;
  readonly #clock: ArrivalClock;
  readonly #drawPair: () => Pair;
  readonly #phases: Phases | undefined;
  readonly #names: BlockNames;
  readonly #turnPrng: Prng;
  readonly #drawNew: () => number;
  readonly #turns = new TurnQueue();
  readonly #blockTokens: number;
  #firstUs: number;
  #index = 0;

  constructor(workload: Workload, { seed, blockTokens }: { readonly seed: number; readonly blockTokens: number }) {
    this.#workload = workload;
    this.#blockTokens = blockTokens;
    const { arrivals, sessions } = workload;
    const requestsPerSecond = arrivals.requestsPerSecond / (sessions?.turns ?? 1);
    this.#clock = new ArrivalClock({ ...arrivals, requestsPerSecond }, new Prng(seed, streams.arrivals));
    this.#phases = workload.phases && new Phases(workload.phases, new Prng(seed, streams.lengths));
    this.#drawPair =
      this.#phases?.draw ?? pairDrawer(workload, new Prng(seed, streams.lengths), new Prng(seed, streams.kinds));
    this.#names = new BlockNames(workload.prefixes, blockTokens, new Prng(seed, streams.families));
    this.#turnPrng = new Prng(seed, streams.turns);
    this.#drawNew = drawer(sessions?.newTokens ?? { kind: 'fixed', tokens: 1 }, this.#turnPrng);
    this.#firstUs = this.#arrivalUs();
  }

  #arrivalUs(): number {
    const us = this.#clock.nextUs();
    return this.#phases?.warp(us) ?? us;
  }

  /** Pins of the most popular prefixes at the start, as long as in a prompt of mean length. */
  pins(families: number, pinUs: number): readonly TraceRequest[] {
    const { lengths, prefixes } = this.#workload;
    if (lengths.kind !== 'drawn' || prefixes === undefined) return [];
    return Array.from({ length: Math.min(families, prefixes.families) }, (_, k) => {
      const blocks = this.#names.prefix(k, meanOf(lengths.input));
      const inputTokens = blocks.length * this.#blockTokens;
      return { index: this.#index++, arrivalUs: 0, inputTokens, outputTokens: 1, blocks, pinUs };
    }).filter(({ inputTokens }) => inputTokens > 0);
  }

  next(): TraceRequest {
    const { input, output } = this.#drawPair();
    if (this.#turns.nextUs <= this.#firstUs) return this.#continue(this.#turns.take(), output);
    const arrivalUs = this.#firstUs;
    this.#firstUs = this.#arrivalUs();
    const { contextTokens } = this.#workload;
    const outputTokens = Math.min(output, contextTokens - 1);
    const inputTokens = Math.min(input, contextTokens - outputTokens);
    return this.#emit({ arrivalUs, inputTokens, outputTokens, blocks: this.#names.fresh(inputTokens) });
  }

  #continue({ arrivalUs, inputTokens, before, beforeTokens }: Conversation, output: number): TraceRequest {
    const outputTokens = Math.min(output, this.#workload.contextTokens - inputTokens);
    const blocks = this.#names.continued(before, beforeTokens, inputTokens);
    return this.#emit({ arrivalUs, inputTokens, outputTokens, blocks });
  }

  #emit(request: Omit<TraceRequest, 'index'>): TraceRequest {
    if (this.#workload.sessions !== undefined) this.#maybeContinue(request, this.#workload.sessions);
    return { index: this.#index++, ...request };
  }

  /** Adds the next request of the session, if the session continues. */
  #maybeContinue(
    { arrivalUs, inputTokens, outputTokens, blocks }: Omit<TraceRequest, 'index'>,
    { turns, thinkSeconds, answerMsPerToken }: Sessions,
  ): void {
    if (this.#turnPrng.uniform() >= 1 - 1 / turns) return;
    const next = inputTokens + outputTokens + this.#drawNew();
    const thinkUs = Math.round(this.#turnPrng.exponential() * thinkSeconds * 1e6);
    if (next >= this.#workload.contextTokens) return;
    const answerUs = Math.round(outputTokens * answerMsPerToken * 1000);
    this.#turns.add({
      arrivalUs: arrivalUs + answerUs + thinkUs,
      inputTokens: next,
      before: blocks,
      beforeTokens: inputTokens,
    });
  }
}

/** Warps arrivals of a constant rate: compressed in phases of higher load, stretched in phases of lower load. */
class Phases {
  readonly #phases: readonly Phase[];
  readonly #pairs: readonly (() => Pair)[];
  /** All phases once: their duration, and the duration of the same number of requests at the constant rate. */
  readonly #round = { seconds: 0, length: 0 };
  #current = 0;

  constructor(phases: readonly Phase[], prng: Prng) {
    this.#phases = phases;
    for (const { seconds, times } of phases) {
      this.#round.seconds += seconds;
      this.#round.length += seconds * times;
    }
    this.#pairs = phases.map(({ lengths }) => pairOf(lengths, prng));
  }

  /** Lengths of the phase of the last arrival. */
  readonly draw = (): Pair => this.#pairs[this.#current]();

  /** The arrival time of a request that would arrive at `us` at the constant rate. */
  warp(us: number): number {
    const rounds = Math.floor(us / 1e6 / this.#round.length);
    let left = us / 1e6 - rounds * this.#round.length;
    let seconds = rounds * this.#round.seconds;
    for (let k = 0; ; k = (k + 1) % this.#phases.length) {
      const phase = this.#phases[k];
      const length = phase.seconds * phase.times;
      if (left < length) {
        this.#current = k;
        return Math.round((seconds + left / phase.times) * 1e6);
      }
      left -= length;
      seconds += phase.seconds;
    }
  }
}

function pairDrawer({ lengths, long }: Workload, prng: Prng, kinds: Prng): () => Pair {
  const drawShort = lengths.kind === 'drawn' ? pairOf(lengths, prng) : rowsOf(lengths, prng);
  if (long === undefined) return drawShort;
  const drawLong = pairOf(long.lengths, prng);
  return () => (kinds.uniform() < long.share ? drawLong() : drawShort());
}

function pairOf({ input, output }: DrawnLengths, prng: Prng): () => Pair {
  const drawInput = drawer(input, prng);
  const drawOutput = drawer(output, prng);
  return () => ({ input: drawInput(), output: drawOutput() });
}

function rowsOf({ input, output }: LengthTable, prng: Prng): () => Pair {
  return () => {
    const row = prng.integer(0, input.length - 1);
    return { input: input[row], output: output[row] };
  };
}

/** The next request of a session; its prompt extends the one before. */
interface Conversation {
  readonly arrivalUs: number;
  readonly inputTokens: number;
  readonly before: Int32Array;
  readonly beforeTokens: number;
}

/** A binary heap; at equal times in the order of insertion. */
class TurnQueue {
  readonly #items: { readonly turn: Conversation; readonly order: number }[] = [];
  #added = 0;

  /** Infinity when it is empty. */
  get nextUs(): number {
    return this.#items[0]?.turn.arrivalUs ?? Number.POSITIVE_INFINITY;
  }

  add(turn: Conversation): void {
    const items = this.#items;
    items.push({ turn, order: this.#added++ });
    for (let place = items.length - 1; place > 0; ) {
      const parent = (place - 1) >> 1;
      if (!this.#before(place, parent)) return;
      this.#swap(place, parent);
      place = parent;
    }
  }

  /** Removes the first entry; there must be one. */
  take(): Conversation {
    const items = this.#items;
    this.#swap(0, items.length - 1);
    const taken = items.pop();
    if (taken === undefined) throw new Error('Cannot take a turn: no session is under way');
    for (let place = 0; ; ) {
      let child = 2 * place + 1;
      if (child >= items.length) return taken.turn;
      if (child + 1 < items.length && this.#before(child + 1, child)) child++;
      if (!this.#before(child, place)) return taken.turn;
      this.#swap(place, child);
      place = child;
    }
  }

  #before(a: number, b: number): boolean {
    const [first, second] = [this.#items[a], this.#items[b]];
    const apart = first.turn.arrivalUs - second.turn.arrivalUs;
    return apart < 0 || (apart === 0 && first.order < second.order);
  }

  #swap(a: number, b: number): void {
    const items = this.#items;
    [items[a], items[b]] = [items[b], items[a]];
  }
}
