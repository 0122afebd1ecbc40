// A workload from its description and a seed: an endless stream of requests in constant memory.

import { Prng } from '../../util/prng.ts';
import type { TraceRequest } from '../request.ts';
import { ArrivalClock, type Arrivals } from './arrivals.ts';
import { BlockNames, type Prefixes } from './block-names.ts';
import { type DrawnLengths, drawer, type Lengths, type LengthTable, meanOf } from './lengths.ts';

/** Distributions of think times. */
export const thinkTimes = ['exponential', 'constant'] as const;
export type ThinkTimes = (typeof thinkTimes)[number];

export interface Sessions {
  /** Mean number of requests of a session, at least 1; geometrically distributed. */
  readonly turns: number;
  /** Tokens that the user adds to the last prompt and its output. */
  readonly newTokens: Lengths;
  /** Mean time from the last output token to the next prompt. */
  readonly thinkSeconds: number;
  /** Undefined: exponential. */
  readonly thinkTimes?: ThinkTimes | undefined;
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
  #sessions = 0;

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
    if (this.#turns.nextUs <= this.#firstUs) {
      const turn = this.#turns.take();
      return this.#emit({ arrivalUs: turn.arrivalUs, ...this.#prompt(turn, output) });
    }
    return this.#emit(this.#first(input, output));
  }

  /**
   * The first request of the next session, with its further turns as `next`: each is sent a think time after the answer before it. Not to be
   * mixed with `next()`.
   * @param turnsMax largest number of turns
   */
  nextSession(turnsMax: number): { readonly request: TraceRequest; readonly turns: number } {
    const { input, output } = this.#drawPair();
    const first = { index: this.#index++, ...this.#first(input, output) };
    const turns: { readonly thinkUs: number; readonly request: TraceRequest }[] = [{ thinkUs: 0, request: first }];
    const { sessions } = this.#workload;
    for (let last = first; sessions !== undefined && turns.length < turnsMax; ) {
      const turn = this.#drawTurn(last, sessions);
      if (turn === undefined) break;
      last = { index: this.#index++, arrivalUs: 0, ...this.#prompt(turn, this.#drawPair().output) };
      turns.push({ thinkUs: turn.thinkUs, request: last });
    }
    const { request } = turns.reduceRight((next, { thinkUs, request: own }) => {
      return { thinkUs, request: { ...own, next } };
    });
    return { request, turns: turns.length };
  }

  #first(input: number, output: number): Omit<TraceRequest, 'index'> {
    const arrivalUs = this.#firstUs;
    this.#firstUs = this.#arrivalUs();
    const { contextTokens } = this.#workload;
    const outputTokens = Math.min(output, contextTokens - 1);
    const inputTokens = Math.min(input, contextTokens - outputTokens);
    const own = this.#workload.sessions === undefined ? {} : { session: this.#sessions++, turn: 0 };
    return { arrivalUs, inputTokens, outputTokens, blocks: this.#names.fresh(inputTokens), ...own };
  }

  #prompt(last: Turn, output: number): Omit<TraceRequest, 'index' | 'arrivalUs'> {
    const { inputTokens, before, beforeTokens, session, turn } = last;
    const outputTokens = Math.min(output, this.#workload.contextTokens - inputTokens);
    const blocks = this.#names.continued(before, beforeTokens, inputTokens);
    return { inputTokens, outputTokens, blocks, session, turn };
  }

  /** The session continues after the answer and a think time, if it continues. */
  #emit(request: Omit<TraceRequest, 'index'>): TraceRequest {
    const { sessions } = this.#workload;
    const turn = sessions && this.#drawTurn(request, sessions);
    if (turn !== undefined) {
      const answerUs = Math.round(request.outputTokens * turn.answerMsPerToken * 1000);
      this.#turns.add({ ...turn, arrivalUs: request.arrivalUs + answerUs + turn.thinkUs });
    }
    return { index: this.#index++, ...request };
  }

  /** The next turn of the session; undefined: the session ends. */
  #drawTurn(
    { inputTokens, outputTokens, blocks, session = 0, turn = 0 }: Omit<TraceRequest, 'index'>,
    { turns, thinkSeconds, thinkTimes: kind, answerMsPerToken }: Sessions,
  ): (Turn & { readonly thinkUs: number; readonly answerMsPerToken: number }) | undefined {
    if (this.#turnPrng.uniform() >= 1 - 1 / turns) return undefined;
    const next = inputTokens + outputTokens + this.#drawNew();
    const pauses = kind === 'constant' ? 1 : this.#turnPrng.exponential();
    if (next >= this.#workload.contextTokens) return undefined;
    const thinkUs = Math.round(pauses * thinkSeconds * 1e6);
    const place = { session, turn: turn + 1 };
    return { inputTokens: next, before: blocks, beforeTokens: inputTokens, ...place, thinkUs, answerMsPerToken };
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
interface Turn {
  readonly inputTokens: number;
  readonly before: Int32Array;
  readonly beforeTokens: number;
  readonly session: number;
  readonly turn: number;
}

interface TimedTurn extends Turn {
  readonly arrivalUs: number;
}

/** A binary heap; at equal times in the order of insertion. */
class TurnQueue {
  readonly #items: { readonly turn: TimedTurn; readonly order: number }[] = [];
  #added = 0;

  /** Infinity when it is empty. */
  get nextUs(): number {
    return this.#items[0]?.turn.arrivalUs ?? Number.POSITIVE_INFINITY;
  }

  add(turn: TimedTurn): void {
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
  take(): TimedTurn {
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
