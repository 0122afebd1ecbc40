// What callers use now, against the limits of their keys.
import type { KeyOpen } from '../../core/protocol/ports.ts';
import { ApiError } from '../http/errors.ts';
import type { Caller } from './caller.ts';

const minuteMs = 60_000;
/** A key without charges for this time is idle: its buckets are full, unless it has overdrawn them. */
const idleMs = 2 * minuteMs;

/** Refills evenly and holds the amount of one minute at most. Charges may overdraw it. */
class MinuteBucket {
  #level: number | undefined;
  #atMs = 0;

  /** What is left. */
  level(perMinute: number, nowMs: number): number {
    const refilled = ((nowMs - this.#atMs) / minuteMs) * perMinute;
    this.#level = Math.min(perMinute, (this.#level ?? perMinute) + refilled);
    this.#atMs = nowMs;
    return this.#level;
  }

  /** @param perMinute undefined: there is no limit */
  charge(amount: number, perMinute: number | undefined, nowMs: number): void {
    if (perMinute !== undefined) this.#level = this.level(perMinute, nowMs) - amount;
  }

  /** Time until `amount` is left. */
  waitMs(amount: number, perMinute: number): number {
    return Math.max(0, ((amount - (this.#level ?? perMinute)) / perMinute) * minuteMs);
  }
}

class CallerState {
  readonly requests = new MinuteBucket();
  readonly tokens = new MinuteBucket();
  concurrent = 0;
  queued = 0;
  /** Choices that hold a place of the queue. */
  places = 0;
  /** Charged here since the key was last idle, of limits a minute; undefined: it is idle. */
  charged: { requests: number; tokens: number; atMs: number } | undefined;
}

/** What a caller has open. */
export type OpenUse = KeyOpen['open'];

const nothingOpen: OpenUse = { requests: 0, queued: 0, connections: 0 };

/** What callers have open at the other gateways of a cluster, as each has reported last. */
export class OpenElsewhere {
  /** By connection to a gateway, then by caller. */
  readonly #gateways = new Map<object, ReadonlyMap<string, OpenUse>>();

  /** @param callers by name; empty: the gateway is lost, or has nothing open */
  report(from: object, callers: ReadonlyMap<string, OpenUse>): void {
    if (callers.size === 0) this.#gateways.delete(from);
    else this.#gateways.set(from, callers);
  }

  of({ name }: Caller): OpenUse {
    let sum = nothingOpen;
    for (const callers of this.#gateways.values()) {
      const { requests, queued, connections } = callers.get(name) ?? nothingOpen;
      sum = {
        requests: sum.requests + requests,
        queued: sum.queued + queued,
        connections: sum.connections + connections,
      };
    }
    return sum;
  }
}

/** One generating HTTP request. */
export interface RequestUse {
  /** Its first token was generated. */
  started(): void;
  /** Called once. */
  ended(outputTokens: number): void;
}

/** Of batch requests, which have limits of their own. */
export const unlimitedUse: RequestUse = { started: () => {}, ended: () => {} };

export interface CallerUsageOptions {
  readonly nowMs: () => number;
  /** Places of the queue (`--queue`). */
  readonly queueMax: number;
  /** True if callers can be told apart: then each may hold as many places of the queue as are free. */
  readonly sharesQueue: () => boolean;
  /** Undefined: the gateway is alone. */
  readonly elsewhere?: OpenElsewhere;
}

/**
 * Limits of keys. They also count what other gateways charge and have open; the queue is that of this gateway. It is shared by dynamic thresholds (Choudhury and
 * Hahne, 1998): a caller may hold as many places as are free, so that any number of greedy callers leaves places for others.
 */
export class CallerUsage {
  readonly #options: CallerUsageOptions;
  readonly #states = new Map<string, CallerState>();
  #places = 0;

  constructor(options: CallerUsageOptions) {
    this.#options = options;
  }

  /** Refuses a request before its prompt is tokenized. @throws ApiError 429 naming the limit */
  check(caller: Caller): void {
    const state = this.#stateOf(caller);
    const { requestsPerMinute, tokensPerMinute, concurrentRequests, queuedRequests } = caller.limits;
    const nowMs = this.#options.nowMs();
    if (requestsPerMinute !== undefined && state.requests.level(requestsPerMinute, nowMs) < 1)
      throw exceeded(caller, 'requests_per_minute', requestsPerMinute, state.requests.waitMs(1, requestsPerMinute));
    if (tokensPerMinute !== undefined && state.tokens.level(tokensPerMinute, nowMs) <= 0)
      throw exceeded(caller, 'tokens_per_minute', tokensPerMinute, state.tokens.waitMs(1, tokensPerMinute));
    if (concurrentRequests === undefined && queuedRequests === undefined) return;
    const { requests, queued } = this.#options.elsewhere?.of(caller) ?? nothingOpen;
    if (concurrentRequests !== undefined && state.concurrent + requests >= concurrentRequests)
      throw exceeded(caller, 'concurrent_requests', concurrentRequests, 1000);
    if (queuedRequests !== undefined && state.queued + queued >= queuedRequests)
      throw exceeded(caller, 'queued_requests', queuedRequests, 1000);
  }

  /** @throws ApiError 429 naming the limit */
  begin(caller: Caller, choices: number, promptTokens: number): RequestUse {
    this.check(caller);
    const state = this.#stateOf(caller);
    this.#takePlaces(caller, state, choices);
    this.#charge(caller, state, 1, promptTokens);
    state.concurrent++;
    state.queued++;
    let isQueued = true;
    const started = (): void => {
      if (isQueued) state.queued--;
      isQueued = false;
    };
    const ended = (outputTokens: number): void => {
      started();
      state.concurrent--;
      state.places -= choices;
      this.#places -= choices;
      this.#charge(caller, state, 0, outputTokens);
    };
    return { started, ended };
  }

  /** Counts a request that waits for its model like one that runs. @returns ends the wait @throws ApiError 429 naming the limit */
  wait(caller: Caller): () => void {
    const { ended } = this.begin(caller, 1, 0);
    return () => {
      ended(0);
      // The request is charged when it runs.
      this.#charge(caller, this.#stateOf(caller), -1, 0);
    };
  }

  /** What keys with limits a minute have used here, by name. A key that is idle is left out, and then counts from 0. */
  charged(): readonly { readonly name: string; readonly requests: number; readonly tokens: number }[] {
    const nowMs = this.#options.nowMs();
    return [...this.#states].flatMap(([name, state]) => {
      if (state.charged === undefined) return [];
      const { requests, tokens, atMs } = state.charged;
      if (nowMs - atMs < idleMs) return [{ name, requests, tokens }];
      state.charged = undefined;
      return [];
    });
  }

  /** By name, what callers have open here. */
  get open(): ReadonlyMap<string, Pick<OpenUse, 'requests' | 'queued'>> {
    const busy = [...this.#states].filter(([, { concurrent }]) => concurrent > 0);
    return new Map(busy.map(([name, { concurrent, queued }]) => [name, { requests: concurrent, queued }]));
  }

  /** Another gateway has charged the caller. */
  chargeElsewhere(caller: Caller, requests: number, tokens: number): void {
    const nowMs = this.#options.nowMs();
    const state = this.#stateOf(caller);
    state.requests.charge(requests, caller.limits.requestsPerMinute, nowMs);
    state.tokens.charge(tokens, caller.limits.tokensPerMinute, nowMs);
  }

  #charge(caller: Caller, state: CallerState, requests: number, tokens: number): void {
    const { requestsPerMinute, tokensPerMinute } = caller.limits;
    this.chargeElsewhere(caller, requests, tokens);
    if (requestsPerMinute === undefined && tokensPerMinute === undefined) return;
    const { charged = { requests: 0, tokens: 0 } } = state;
    const sums = { requests: charged.requests + requests, tokens: charged.tokens + tokens };
    state.charged = { ...sums, atMs: this.#options.nowMs() };
  }

  #takePlaces(caller: Caller, state: CallerState, choices: number): void {
    const { queueMax, sharesQueue } = this.#options;
    const free = queueMax - this.#places;
    if (sharesQueue() && state.places > 0 && state.places + choices > free) {
      const figures = `it holds ${state.places} of ${queueMax} places of the queue, and ${free} are free`;
      throw new ApiError(
        429,
        `Cannot accept request of '${caller.name}': ${figures}: a key may hold as many as are free`,
        {
          code: 'queue_share',
          retryAfterMs: 1000,
        },
      );
    }
    state.places += choices;
    this.#places += choices;
  }

  #stateOf({ name }: Caller): CallerState {
    let state = this.#states.get(name);
    if (state === undefined) {
      state = new CallerState();
      this.#states.set(name, state);
    }
    return state;
  }
}

/** What is used of a connection. */
interface Connection {
  once(event: 'close', onClose: () => void): unknown;
}

/** The open connections of each caller; one belongs to the caller of its latest request. */
export class CallerConnections {
  readonly #owners = new WeakMap<Connection, string>();
  readonly #counts = new Map<string, number>();
  readonly #each: () => number | undefined;
  readonly #elsewhere: OpenElsewhere | undefined;

  /** @param each limit of keys without one of their own, at this gateway */
  constructor(each: () => number | undefined, elsewhere?: OpenElsewhere) {
    this.#each = each;
    this.#elsewhere = elsewhere;
  }

  /** @throws ApiError 429 if the caller has as many other connections as its key may have */
  use(caller: Caller, connection: Connection): void {
    const owner = this.#owners.get(connection);
    if (owner === caller.name) return;
    const { connections: own } = caller.limits;
    const limit = own ?? this.#each();
    const elsewhere = own === undefined ? 0 : (this.#elsewhere?.of(caller).connections ?? 0);
    if (limit !== undefined && this.countOf(caller) + elsewhere >= limit)
      throw exceeded(caller, 'connections', limit, 1000);
    if (owner === undefined) connection.once('close', () => this.#add(this.#owners.get(connection), -1));
    this.#add(owner, -1);
    this.#owners.set(connection, caller.name);
    this.#add(caller.name, 1);
  }

  /** By name of the caller. */
  get open(): ReadonlyMap<string, number> {
    return this.#counts;
  }

  countOf({ name }: Caller): number {
    return this.#counts.get(name) ?? 0;
  }

  #add(name: string | undefined, change: number): void {
    if (name === undefined) return;
    const count = (this.#counts.get(name) ?? 0) + change;
    if (count === 0) this.#counts.delete(name);
    else this.#counts.set(name, count);
  }
}

function exceeded({ name }: Caller, limit: string, most: number, retryAfterMs: number): ApiError {
  return new ApiError(429, `Cannot accept request of '${name}': its key has the limit ${limit} of ${most}`, {
    code: 'key_limit',
    param: limit,
    retryAfterMs,
  });
}
