// Where a request goes: Mooncake's Algorithm 1 and the baselines that it is measured against, as pure functions of plain views.
import { counterUniform } from '../../../util/counter-random.ts';
import { longestMatch, type PrefixMatches } from '../../kvcache/events/prefix-index.ts';
import type { ClusterView } from '../../protocol/cluster-view.ts';

export const placementKinds = ['cache-aware', 'local-cache-only', 'least-loaded', 'round-robin', 'random'] as const;
export type PlacementKind = (typeof placementKinds)[number];

export interface TransferCosts {
  /** Until `tokens` tokens of keys and values have come, the sender's backlog included. */
  transferUs(from: number, to: number, tokens: number): number;
  /** Of that, what passes before the first byte, whatever there is to send: nobody computes behind it meanwhile. */
  latencyUs(from: number, to: number): number;
  /** What an instance has to send before anything else. */
  backlogUs(from: number): number;
}

export interface PlacementCosts {
  readonly kinds: number;
  /** Prefill of `tokens` tokens, the first `cachedTokens` of which are in the cache, on an instance of the kind that does nothing else. */
  prefillUs(kind: number, tokens: number, cachedTokens: number): number;
  /** What moves between instances; undefined: nothing does. */
  readonly transfers: TransferCosts | undefined;
  /** Until an instance has read `tokens` tokens of its SSD. */
  readUs(instance: number, tokens: number): number;
  /** Of a prefill behind `cachedTokens` tokens, what runs before the last of these are here: 0 where all are waited for. */
  overlapUs(kind: number, tokens: number, cachedTokens: number): number;
}

/** What is asked. */
export interface PlacementQuery {
  /** Counts the requests that were placed. */
  readonly number: number;
  readonly tokens: number;
  readonly blockTokens: number;
  /** Undefined for policies that do not look at caches. */
  readonly matches: PrefixMatches | undefined;
}

export interface PlacementDecision {
  readonly instance: number;
  /** Blocks of the prompt that the instance has itself, and those that it is to fetch besides. */
  readonly localBlocks: number;
  readonly fetchedBlocks: number;
  /** Who sends them; undefined when none are fetched. */
  readonly from: number | undefined;
  /** Of its own blocks, and of those that it is to fetch, how many have to be read of SSD. */
  readonly ssdBlocks: number;
  readonly fetchedSsdBlocks: number;
  readonly queueUs: number;
  /** What the other one reads of SSD included. */
  readonly transferUs: number;
  /** Until it could begin for what comes: all of it, less what is computed meanwhile. */
  readonly readyUs: number;
  readonly prefillUs: number;
  /** Until the prefill begins: what it fetches comes while others compute. */
  readonly waitUs: number;
  /** What the fetch saves: after so much more than its time, computing would have been faster. */
  readonly savedUs: number;
}

export interface PlacementSettings {
  readonly kind: PlacementKind;
  /** Two unsigned 32-bit halves. */
  readonly seed: readonly [number, number];
  /** A remote prefix is worth a look when it is so many times as long as the instance's own (`kvcache_balancing_threshold`). */
  readonly balancingThreshold: number;
}

/** Decides from what it is shown alone: the same question gets the same answer. */
export class Placement {
  readonly #settings: PlacementSettings;
  readonly #costs: PlacementCosts;
  /** (kinds): prefill of the question's whole prompt, and of what the longest prefix leaves of it. */
  readonly #wholeUs: Float64Array;
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

  /** Undefined when no instance takes requests. */
  choose(question: PlacementQuery, view: ClusterView): PlacementDecision | undefined {
    switch (this.#settings.kind) {
      case 'cache-aware':
        return this.#leastTtft(question, view, true);
      case 'local-cache-only':
        return this.#leastTtft(question, view, false);
      case 'least-loaded':
        return this.#plain(question, view, leastLoaded(view));
      case 'round-robin':
        return this.#plain(question, view, nthUp(view, question.number % countUp(view)));
      case 'random':
        return this.#plain(question, view, nthUp(view, this.#draw(question.number, countUp(view))));
    }
  }

  #draw(number: number, below: number): number {
    const [low, high] = this.#settings.seed;
    return Math.floor(counterUniform(low, high, number) * below);
  }

  /** A policy that looks at no cache; what the chosen one has it uses all the same. */
  #plain(question: PlacementQuery, view: ClusterView, instance: number | undefined): PlacementDecision | undefined {
    if (instance === undefined) return undefined;
    const { tokens, blockTokens, matches } = question;
    const localBlocks = matches?.blocks[instance] ?? 0;
    const queueUs = view.queueUs[instance];
    const prefillUs = this.#costs.prefillUs(view.kind[instance], tokens, localBlocks * blockTokens);
    const readyUs = this.#readyUs(view.kind[instance], question, localBlocks, this.#ownReadUs(question, instance));
    // Field by field, in the order of the other decisions: all are alike to those who read them.
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
   * Algorithm 1: queue and prefill behind the own prefix, or behind a fetched one where that is so much longer; the least sum wins. A prefix
   * comes while others compute, so that the longer of queue and transfer counts, not their sum. Among equal sums least is moved, then least
   * computed: what is predicted to cost no time costs a link, and the other one, all the same.
   */
  #leastTtft(question: PlacementQuery, view: ClusterView, fetching: boolean): PlacementDecision | undefined {
    const { matches, tokens, blockTokens } = question;
    const transfers = fetching ? this.#costs.transfers : undefined;
    const longest = transfers && longestMatch(matches, transfers);
    const longestBlocks = longest === undefined ? 0 : (matches?.blocks[longest] ?? 0);
    for (let kind = 0; kind < this.#costs.kinds; kind++) {
      this.#wholeUs[kind] = this.#costs.prefillUs(kind, tokens, 0);
      if (longestBlocks > 0) this.#restUs[kind] = this.#costs.prefillUs(kind, tokens, longestBlocks * blockTokens);
    }
    let best: number | undefined;
    let bestUs = Number.POSITIVE_INFINITY;
    let [moved, has] = [0, 0];
    for (let i = 0; i < view.up.length; i++) {
      if (view.up[i] === 0) continue;
      const own = matches?.blocks[i] ?? 0;
      const queueUs = view.queueUs[i];
      const restUs = this.#restUs[view.kind[i]];
      let us = this.#ownUs(question, view, i);
      let fetched = 0;
      // Most instances would not be the best one even if their prefix were there at once.
      const mayFetch = longest !== undefined && queueUs + restUs <= bestUs && queueUs + restUs < us;
      if (mayFetch && longestBlocks > own * this.#settings.balancingThreshold) {
        const { readyUs } = this.#coming(question, view.kind[i], longest, i);
        const fetchedUs = Math.max(queueUs, readyUs) + restUs;
        if (fetchedUs < us) {
          us = fetchedUs;
          fetched = longestBlocks - own;
        }
      }
      if (us > bestUs) continue;
      // Equal is equal to the last bit, as of those who are alike: whoever is predicted to be later, by however little, does not win.
      const after =
        us - bestUs || fetched - moved || has - own - fetched || view.requests[i] - view.requests[best ?? i];
      if (best !== undefined && after >= 0) continue;
      best = i;
      bestUs = us;
      moved = fetched;
      has = own + fetched;
    }
    const alone = this.#plain(question, view, best);
    if (alone === undefined || longest === undefined || moved === 0) return alone;
    const { instance, queueUs } = alone;
    const coming = this.#coming(question, view.kind[instance], longest, instance);
    const prefillUs = this.#restUs[view.kind[instance]];
    const waitUs = Math.max(queueUs, coming.readyUs);
    return { ...alone, ...coming, from: longest, prefillUs, waitUs, savedUs: alone.prefillUs - prefillUs };
  }

  /** All that one has of the prompt, and the other has not, comes from there. */
  #coming(question: PlacementQuery, kind: number, from: number, to: number) {
    const { matches, blockTokens } = question;
    const blocks = matches?.blocks[from] ?? 0;
    const fetchedBlocks = blocks - (matches?.blocks[to] ?? 0);
    const fetchedSsdBlocks = Math.min(fetchedBlocks, matches?.onSsd[from] ?? 0);
    const { transfers } = this.#costs;
    // What has to be read of SSD leaves when all of it has been.
    const readUs = this.#readUs(from, fetchedSsdBlocks * blockTokens);
    const transferUs = readUs + (transfers?.transferUs(from, to, fetchedBlocks * blockTokens) ?? 0);
    const comesUs = Math.max(transferUs, this.#ownReadUs(question, to));
    const beginsUs = readUs + (transfers?.latencyUs(from, to) ?? 0);
    const readyUs = Math.max(beginsUs, this.#readyUs(kind, question, blocks, comesUs));
    return { fetchedBlocks, fetchedSsdBlocks, transferUs, readyUs };
  }

  #ownReadUs({ matches, blockTokens }: PlacementQuery, instance: number): number {
    return this.#readUs(instance, (matches?.onSsd[instance] ?? 0) * blockTokens);
  }

  #readUs(instance: number, tokens: number): number {
    return tokens === 0 ? 0 : this.#costs.readUs(instance, tokens);
  }

  #readyUs(kind: number, { tokens, blockTokens }: PlacementQuery, blocks: number, comesUs: number): number {
    return comesUs === 0 ? 0 : Math.max(0, comesUs - this.#costs.overlapUs(kind, tokens, blocks * blockTokens));
  }

  /** Behind what it has. Most instances have nothing of a prompt: what they would take is the same for all of a kind. */
  #ownUs(question: PlacementQuery, view: ClusterView, i: number): number {
    const { matches, tokens, blockTokens } = question;
    const own = matches?.blocks[i] ?? 0;
    const [kind, queueUs] = [view.kind[i], view.queueUs[i]];
    if (own === 0) return queueUs + this.#wholeUs[kind];
    const readyUs = this.#readyUs(kind, question, own, this.#ownReadUs(question, i));
    return Math.max(queueUs, readyUs) + this.#costs.prefillUs(kind, tokens, own * blockTokens);
  }
}

/** Of a decision: no prefix comes from another instance. */
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
