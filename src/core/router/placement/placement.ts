// Placement policies: Mooncake's Algorithm 1 (section 6.1) and its baselines, as pure functions of plain views.

import { assertNever } from '../../../util/assert-never.ts';
import { counterUniform } from '../../../util/counter-random.ts';
import { longestMatch, type PrefixMatches } from '../../kvcache/events/prefix-index.ts';
import type { ClusterView } from '../../protocol/cluster-view.ts';

/** A new policy is one more kind here and one more case in `Placement.choose`. */
export const placementKinds = ['cache-aware', 'local-cache-only', 'least-loaded', 'round-robin', 'random'] as const;
export type PlacementKind = (typeof placementKinds)[number];

/** The default of `balancingThreshold`, served and simulated. */
export const balancingThresholdDefault = 1.5;

/** Predicted transfer times between instances, in microseconds. */
export interface TransferCosts {
  /** Until `tokens` tokens of keys and values have arrived, the backlog of the sender included. */
  transferUs(from: number, to: number, tokens: number): number;
  /** The part of a transfer before its first byte, during which no prefill overlaps it. */
  latencyUs(from: number, to: number): number;
  /** Until the sender has sent its backlog. */
  backlogUs(from: number): number;
}

/** Predicted times of a prefill, in microseconds. */
export interface PlacementCosts {
  /** Instances of one kind compute at one speed. */
  readonly kinds: number;
  /** Prefill of `tokens` tokens on an idle instance that has the first `cachedTokens` in its cache. */
  prefillUs(kind: number, tokens: number, cachedTokens: number): number;
  /** Undefined: nothing moves between instances. */
  readonly transfers: TransferCosts | undefined;
  /** Until an instance has read `tokens` tokens from its SSD. */
  readUs(instance: number, tokens: number): number;
  /** The part of a prefill that runs while its last `cachedTokens` still arrive; 0: the prefill waits for all of them. */
  overlapUs(kind: number, tokens: number, cachedTokens: number): number;
}

/** Prefill of `tokens` tokens on one instance, beside its attention for debtors. */
export function prefillOn(
  { kind, slowness }: ClusterView,
  costs: PlacementCosts,
  instance: number,
  tokens: number,
  cachedTokens: number,
): number {
  return costs.prefillUs(kind[instance], tokens, cachedTokens) * slowness[instance];
}

/** A prompt to place. */
export interface PlacementQuery {
  /** Number of prompts placed before. */
  readonly number: number;
  readonly tokens: number;
  readonly blockTokens: number;
  /** Undefined for policies that ignore caches. */
  readonly matches: PrefixMatches | undefined;
}

/** The chosen instance. Times are predictions in microseconds. */
export interface PlacementDecision {
  readonly instance: number;
  /** Blocks of the prompt in the instance's own cache. */
  readonly localBlocks: number;
  /** Further blocks that the instance fetches. */
  readonly fetchedBlocks: number;
  /** The instance that sends them; undefined: none are fetched. */
  readonly from: number | undefined;
  /** Of the local blocks, those that are read from SSD. */
  readonly ssdBlocks: number;
  /** Of the fetched blocks, those that the sender reads from SSD. */
  readonly fetchedSsdBlocks: number;
  readonly queueUs: number;
  /** Of the fetched blocks, the SSD reads of the sender included. */
  readonly transferUs: number;
  /** Until the prefill could start as far as its prefix is concerned. */
  readonly readyUs: number;
  readonly prefillUs: number;
  /** Until the prefill starts: fetches overlap with the queue. */
  readonly waitUs: number;
  /** Prefill time that the fetch saves: a fetch that is later by more than this is slower than computing. */
  readonly savedUs: number;
}

/** The choice of a placement policy. */
export interface PlacementChoice {
  readonly instance: number;
  /** Fetch the prefix that this instance has and the chosen one lacks; undefined: fetch nothing. */
  readonly from?: number | undefined;
}

/** A placement policy beside the named ones: a pure function. Undefined when no instance is up. */
export type PlacementPolicy = (
  query: PlacementQuery,
  view: ClusterView,
  costs: PlacementCosts,
) => PlacementChoice | undefined;

export interface PlacementSettings {
  readonly kind: PlacementKind;
  /** Chooses instead of `kind`. */
  readonly policy?: PlacementPolicy | undefined;
  /** Two unsigned 32-bit halves. */
  readonly seed: readonly [number, number];
  /** A remote prefix is considered when it is longer than the local one by this factor (Mooncake's `kvcache_balancing_threshold`). */
  readonly balancingThreshold: number;
  /** Hot prefixes are also copied before a prompt fetches them; false unless given. */
  readonly copiesHotPrefixes?: boolean | undefined;
}

/** A function of its arguments: equal queries of equal views get equal decisions. */
export class Placement {
  readonly #settings: PlacementSettings;
  readonly #costs: PlacementCosts;
  /** (kinds): prefill of the whole prompt of the query. */
  readonly #wholeUs: Float64Array;
  /** (kinds): prefill of the prompt behind its longest prefix. */
  readonly #restUs: Float64Array;

  constructor(settings: PlacementSettings, costs: PlacementCosts) {
    this.#settings = settings;
    this.#costs = costs;
    this.#wholeUs = new Float64Array(costs.kinds);
    this.#restUs = new Float64Array(costs.kinds);
  }

  get kind(): PlacementKind {
    return this.#settings.kind;
  }

  /** Undefined when no instance is up. */
  choose(query: PlacementQuery, view: ClusterView): PlacementDecision | undefined {
    const { kind, policy } = this.#settings;
    if (policy !== undefined) return this.#chosen(query, view, policy(query, view, this.#costs));
    switch (kind) {
      case 'cache-aware':
        return this.#leastTtft(query, view, true);
      case 'local-cache-only':
        return this.#leastTtft(query, view, false);
      case 'least-loaded':
        return this.#withoutFetch(query, view, leastLoaded(view));
      case 'round-robin':
        return this.#withoutFetch(query, view, nthUp(view, query.number % countUp(view)));
      case 'random':
        return this.#withoutFetch(query, view, nthUp(view, this.#draw(query.number, countUp(view))));
      default:
        return assertNever(kind);
    }
  }

  /** @throws Error if the policy chose an instance that is not up */
  #chosen(
    query: PlacementQuery,
    view: ClusterView,
    choice: PlacementChoice | undefined,
  ): PlacementDecision | undefined {
    if (choice === undefined) return undefined;
    const { instance, from } = choice;
    const wrong = [instance, from ?? instance].find(
      (i) => view.up[i] === undefined || (i === instance && view.up[i] === 0),
    );
    if (wrong !== undefined)
      throw new Error(`Cannot place a prompt: the policy chose instance ${wrong}, which is not up`);
    const alone = this.#withoutFetch(query, view, instance);
    const blocks = from === undefined ? 0 : (query.matches?.blocks[from] ?? 0);
    if (alone === undefined || from === undefined || this.#costs.transfers === undefined) return alone;
    if (blocks <= alone.localBlocks) return alone;
    const prefillUs = prefillOn(view, this.#costs, instance, query.tokens, blocks * query.blockTokens);
    return this.#withFetch(query, view, alone, { from, prefillUs });
  }

  /** The decision with a fetch from another instance. @param prefillUs behind the fetched prefix */
  #withFetch(
    query: PlacementQuery,
    view: ClusterView,
    alone: PlacementDecision,
    { from, prefillUs }: { readonly from: number; readonly prefillUs: number },
  ): PlacementDecision {
    const { instance, queueUs } = alone;
    const remote = this.#fetchTimes(query, view.kind[instance], from, instance);
    const waitUs = Math.max(queueUs, remote.readyUs);
    return { ...alone, ...remote, from, prefillUs, waitUs, savedUs: alone.prefillUs - prefillUs };
  }

  #draw(number: number, below: number): number {
    const [low, high] = this.#settings.seed;
    return Math.floor(counterUniform(low, high, number) * below);
  }

  /** Uses the local prefix of the instance, and fetches nothing. */
  #withoutFetch(query: PlacementQuery, view: ClusterView, instance: number | undefined): PlacementDecision | undefined {
    if (instance === undefined) return undefined;
    const { tokens, blockTokens, matches } = query;
    const localBlocks = matches?.blocks[instance] ?? 0;
    const queueUs = view.queueUs[instance];
    const prefillUs = prefillOn(view, this.#costs, instance, tokens, localBlocks * blockTokens);
    const readyUs = this.#readyUs(view.kind[instance], query, localBlocks, this.#localReadUs(query, instance));
    // Every decision has its fields in this order: one hidden class serves all readers.
    return {
      instance,
      localBlocks,
      fetchedBlocks: 0,
      from: undefined,
      ssdBlocks: matches?.onSsd[instance] ?? 0,
      fetchedSsdBlocks: 0,
      queueUs,
      transferUs: 0,
      readyUs,
      prefillUs,
      waitUs: Math.max(queueUs, readyUs),
      savedUs: 0,
    };
  }

  /**
   * Algorithm 1: the least sum of queue and prefill, behind the local prefix, or behind a fetched one that is longer by the threshold. A
   * prefix arrives while other prompts are computed, so that the longer of queue and transfer counts, not their sum. Among equal sums the
   * fewest fetched blocks win, then the fewest computed ones: a predicted time of 0 still uses a link or an instance.
   */
  #leastTtft(query: PlacementQuery, view: ClusterView, fetching: boolean): PlacementDecision | undefined {
    const { matches, tokens, blockTokens } = query;
    const transfers = fetching ? this.#costs.transfers : undefined;
    const longest = transfers && longestMatch(matches, transfers);
    const longestBlocks = longest === undefined ? 0 : (matches?.blocks[longest] ?? 0);
    for (let kind = 0; kind < this.#costs.kinds; kind++) {
      this.#wholeUs[kind] = this.#costs.prefillUs(kind, tokens, 0);
      if (longestBlocks > 0) this.#restUs[kind] = this.#costs.prefillUs(kind, tokens, longestBlocks * blockTokens);
    }
    // A fetch must end before the prefill of the instance that has the prefix: that one fetches nothing.
    const senderUs =
      longest === undefined || view.up[longest] === 0 ? Number.POSITIVE_INFINITY : this.#localUs(query, view, longest);
    let best: number | undefined;
    let bestUs = Number.POSITIVE_INFINITY;
    let [bestFetched, bestCached] = [0, 0];
    const { up, queueUs: queuesUs, kind: kinds, slowness } = view;
    const cached = matches?.blocks;
    for (let i = 0; i < up.length; i++) {
      if (up[i] === 0) continue;
      const local = cached === undefined ? 0 : cached[i];
      const queueUs = queuesUs[i];
      const restUs = this.#restUs[kinds[i]] * slowness[i];
      const soonestUs = queueUs + restUs;
      let us = local === 0 ? queueUs + this.#wholeUs[kinds[i]] * slowness[i] : this.#localUs(query, view, i);
      let fetched = 0;
      // Most instances are slower than another one even with the prefix already there.
      const mayFetch = longest !== undefined && soonestUs < senderUs && soonestUs <= bestUs && soonestUs < us;
      if (mayFetch && longestBlocks > local * this.#settings.balancingThreshold) {
        const { readyUs } = this.#fetchTimes(query, view.kind[i], longest, i);
        const fetchedUs = Math.max(queueUs, readyUs) + restUs;
        if (fetchedUs < us) {
          us = fetchedUs;
          fetched = longestBlocks - local;
        }
      }
      if (us > bestUs) continue;
      // Sums are compared exactly, without a tolerance.
      const after =
        us - bestUs ||
        fetched - bestFetched ||
        bestCached - local - fetched ||
        view.requests[i] - view.requests[best ?? i];
      if (best !== undefined && after >= 0) continue;
      best = i;
      bestUs = us;
      bestFetched = fetched;
      bestCached = local + fetched;
    }
    const alone = this.#withoutFetch(query, view, best);
    if (alone === undefined || longest === undefined || bestFetched === 0) return alone;
    const prefillUs = this.#restUs[view.kind[alone.instance]] * view.slowness[alone.instance];
    return this.#withFetch(query, view, alone, { from: longest, prefillUs });
  }

  /** The fetch of all blocks of the prompt that `from` has and `to` lacks. */
  #fetchTimes(query: PlacementQuery, kind: number, from: number, to: number) {
    const { matches, blockTokens } = query;
    const blocks = matches?.blocks[from] ?? 0;
    const fetchedBlocks = blocks - (matches?.blocks[to] ?? 0);
    const fetchedSsdBlocks = Math.min(fetchedBlocks, matches?.onSsd[from] ?? 0);
    const { transfers } = this.#costs;
    // The sender reads all of its SSD blocks before it sends.
    const readUs = this.#readUs(from, fetchedSsdBlocks * blockTokens);
    const transferUs = readUs + (transfers?.transferUs(from, to, fetchedBlocks * blockTokens) ?? 0);
    const arrivedUs = Math.max(transferUs, this.#localReadUs(query, to));
    const firstByteUs = readUs + (transfers?.latencyUs(from, to) ?? 0);
    const readyUs = Math.max(firstByteUs, this.#readyUs(kind, query, blocks, arrivedUs));
    return { fetchedBlocks, fetchedSsdBlocks, transferUs, readyUs };
  }

  #localReadUs({ matches, blockTokens }: PlacementQuery, instance: number): number {
    return this.#readUs(instance, (matches?.onSsd[instance] ?? 0) * blockTokens);
  }

  #readUs(instance: number, tokens: number): number {
    return tokens === 0 ? 0 : this.#costs.readUs(instance, tokens);
  }

  /** @param arrivedUs until all of the prefix is there */
  #readyUs(kind: number, { tokens, blockTokens }: PlacementQuery, blocks: number, arrivedUs: number): number {
    return arrivedUs === 0 ? 0 : Math.max(0, arrivedUs - this.#costs.overlapUs(kind, tokens, blocks * blockTokens));
  }

  /** TTFT behind the local prefix. Most instances have nothing of a prompt: those of one kind share one prefill time. */
  #localUs(query: PlacementQuery, view: ClusterView, i: number): number {
    const { matches, tokens, blockTokens } = query;
    const local = matches?.blocks[i] ?? 0;
    const [kind, queueUs] = [view.kind[i], view.queueUs[i]];
    if (local === 0) return queueUs + this.#wholeUs[kind] * view.slowness[i];
    const readyUs = this.#readyUs(kind, query, local, this.#localReadUs(query, i));
    return Math.max(queueUs, readyUs) + prefillOn(view, this.#costs, i, tokens, local * blockTokens);
  }
}

/** The fields of a decision without a fetch. */
export const nothingFetched = {
  ...{ localBlocks: 0, fetchedBlocks: 0, from: undefined, ssdBlocks: 0, fetchedSsdBlocks: 0 },
  ...{ transferUs: 0, readyUs: 0, savedUs: 0 },
};

function leastLoaded({ up, requests }: ClusterView): number | undefined {
  let best: number | undefined;
  for (let i = 0; i < up.length; i++) {
    if (up[i] === 1 && (best === undefined || requests[i] < requests[best])) best = i;
  }
  return best;
}

function countUp({ up }: ClusterView): number {
  let count = 0;
  for (let i = 0; i < up.length; i++) count += up[i];
  return count;
}

function nthUp({ up }: ClusterView, n: number): number | undefined {
  let left = n;
  for (let i = 0; i < up.length; i++) if (up[i] === 1 && left-- === 0) return i;
  return undefined;
}
