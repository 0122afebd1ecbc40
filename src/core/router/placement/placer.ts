// How the conductor finds an instance for a request: what it has heard of caches and queues, shown to a placement policy.

import { wideZero } from '../../../util/wide-zero.ts';
import type { PrefillPredictor } from '../../cost/prefill.ts';
import { type SsdConfig, SsdTimes } from '../../cost/ssd-times.ts';
import { type TransferConfig, TransferTimes } from '../../cost/transfer-times.ts';
import { type BatchVerdict, PrefixIndex, PrefixMatches } from '../../kvcache/events/prefix-index.ts';
import { chooseGroup, type GroupChoice, type PipelineSettings } from '../../pipeline/group.ts';
import { GroupPrefixes } from '../../pipeline/group-prefixes.ts';
import type { PipelinedPrefill } from '../../pipeline/pipelined-prefill.ts';
import type { GroupPrefix, PrefixFetch } from '../../protocol/events.ts';
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { BlockChain, KvEventBatch, KvSnapshot } from '../../protocol/kv-events.ts';
import type { BlockFates, Considered } from '../../protocol/request-trace.ts';
import { type BlockCounts, blockFates, type MissReasons, type PlacementRecords } from '../placed.ts';
import { Placement, type PlacementDecision, type PlacementSettings } from './placement.ts';
import { PrefillQueues } from './prefill-queues.ts';

export type { PipelineSettings, PlacementSettings };

/** Without it the instance with the fewest requests is taken, and nothing is known of caches. */
export interface PlacerConfig<Request> extends PlacementSettings {
  readonly blockTokens: number;
  /** Of the prompt's full blocks. */
  readonly chainOf: (request: Request) => BlockChain;
  /** (instances): who predicts the prefills of each; instances that are alike share one. */
  readonly predictors: readonly PrefillPredictor[];
  /** Undefined: prefixes never move between instances. */
  readonly transfers: TransferConfig | undefined;
  /** Undefined: none has an SSD. */
  readonly ssds?: SsdConfig | undefined;
  /** Requests start while their prefixes come, with so many rows in a step at most. Undefined: when all of it is there. */
  readonly aheadRows?: number | undefined;
  /** Long prompts may be computed by groups; `prefills` (instances) predicts them, of those that are alike by one. Undefined: never. */
  readonly pipeline?:
    | (PipelineSettings & {
        readonly prefills: readonly PipelinedPrefill[];
        /** Undefined: any request may be. */
        readonly takes?: (request: Request) => boolean;
      })
    | undefined;
  /** Blocks that the index has room for from the start, and those that it remembers when nobody holds them any more. */
  readonly blocks: number;
  readonly rememberedBlocks: number;
}

/** What the members of a group do, each. */
interface GroupShare {
  readonly members: readonly InstanceIndex[];
  readonly workUs: number;
  readonly prefix: GroupPrefix | undefined;
}

export class Placer<Request> {
  readonly misses: MissReasons = { neverSeen: 0, evicted: 0, elsewhere: 0, partial: 0 };
  hitBlocks = 0;
  readonly #config: PlacerConfig<Request> | undefined;
  readonly #takesPrompts: boolean[];
  readonly #placement: Placement;
  readonly #predictors: readonly PrefillPredictor[];
  readonly #queues: PrefillQueues;
  readonly #index: PrefixIndex | undefined;
  readonly #matches: PrefixMatches | undefined;
  readonly #transfers: TransferTimes | undefined;
  readonly #ssds: SsdTimes | undefined;
  readonly #groupPrefixes: GroupPrefixes | undefined;
  /** (kinds) */
  readonly #groupPrefills: readonly PipelinedPrefill[];
  readonly #view: {
    readonly up: Uint8Array;
    readonly requests: Int32Array;
    readonly queueUs: Float64Array;
    readonly kind: Uint8Array;
  };
  #placed = 0;
  #nowUs: number = wideZero;
  #checked = true;

  /** @param takesPrompts (instances) */
  constructor(takesPrompts: readonly boolean[], config: PlacerConfig<Request> | undefined) {
    const instances = takesPrompts.length;
    this.#config = config;
    this.#predictors = [...new Set(config?.predictors ?? [unpredicted])];
    this.#queues = new PrefillQueues(instances);
    this.#takesPrompts = [...takesPrompts];
    this.#view = {
      up: Uint8Array.from(takesPrompts, Number),
      requests: new Int32Array(instances),
      queueUs: new Float64Array(instances),
      kind: Uint8Array.from({ length: instances }, (_, i) =>
        config === undefined ? 0 : this.#predictors.indexOf(config.predictors[i]),
      ),
    };
    const transfers = config?.transfers && new TransferTimes(config.transfers);
    this.#transfers = transfers;
    this.#ssds = config?.ssds && new SsdTimes(config.ssds);
    this.#placement = new Placement(config ?? plain, {
      kinds: this.#predictors.length,
      prefillUs: (kind, tokens, cached) => this.#predictors[kind].prefillUs(tokens, cached),
      transfers: transfers && {
        transferUs: (from, to, tokens) => transfers.predictUs(this.#nowUs, from, to, tokens),
        askUs: (from, to) => transfers.askUs(from, to),
        backlogUs: (from) => transfers.backlogUs(this.#nowUs, from),
      },
      readUs: (instance, tokens) => this.#ssds?.predictUs(this.#nowUs, instance, tokens) ?? 0,
      overlapUs: (kind, tokens, cached) => this.#overlapUs(kind, tokens, cached),
    });
    const prefills = config?.pipeline?.prefills;
    this.#groupPrefills =
      prefills === undefined ? [] : this.#predictors.map((each) => prefills[config?.predictors.indexOf(each) ?? 0]);
    if (config === undefined) return;
    this.#index = new PrefixIndex({ instances, blocks: config.blocks, remembered: config.rememberedBlocks });
    this.#matches = new PrefixMatches(instances);
    const sends = this.#placement.kind === 'cache-aware' ? transfers : undefined;
    this.#groupPrefixes = new GroupPrefixes(this.#matches, sends, config.blockTokens);
  }

  /** The first step of a prefill that starts ahead of its prefix ends when that is here. */
  #overlapUs(kind: number, tokens: number, cachedTokens: number): number {
    const rows = this.#config?.aheadRows;
    if (rows === undefined) return 0;
    return this.#predictors[kind].prefillUs(Math.min(tokens, cachedTokens + rows), cachedTokens);
  }

  get blockTokens(): number {
    return this.#config?.blockTokens ?? 1;
  }

  /** Different blocks that instances are known to hold. */
  get heldBlocks(): number {
    return this.#index?.blocks ?? 0;
  }

  get blocks(): BlockCounts {
    const replication = this.#index?.replication() ?? { blocks: 0, onSeveral: 0, copies: 0 };
    return { hits: this.hitBlocks, misses: this.misses, replication };
  }

  /**
   * Undefined when no instance is left.
   * @param holds instances that could hold the request: only they are asked, if there are any; undefined: all could
   */
  choose(
    nowUs: number,
    request: Request,
    promptTokens: number,
    holds?: (instance: InstanceIndex) => boolean,
  ): PlacementDecision | undefined {
    const blockTokens = this.#config?.blockTokens ?? 1;
    this.#nowUs = nowUs;
    if (this.#config !== undefined && this.#index !== undefined && this.#matches !== undefined) {
      const reusable = Math.floor((promptTokens - 1) / blockTokens);
      this.#index.match(this.#config.chainOf(request), reusable, this.#matches);
      this.#queues.predict(nowUs, this.#view.queueUs);
    }
    const question = { number: this.#placed, tokens: promptTokens, blockTokens, matches: this.#matches };
    const able = holds && this.#view.up.map((up, i) => (up === 1 && holds(i) ? 1 : 0));
    const view = able?.includes(1) ? { ...this.#view, up: able } : this.#view;
    return this.#placement.choose(question, view);
  }

  /** Who would compute the prompt that was asked about last sooner, together, than whoever it would go to; undefined: nobody. @param decodeAt does not help */
  group(
    request: Request,
    promptTokens: number,
    decision: PlacementDecision,
    decodeAt: InstanceIndex,
  ): { readonly choice: GroupChoice; readonly prefix: GroupPrefix | undefined } | undefined {
    const { pipeline, blockTokens = 1 } = this.#config ?? plain;
    if (pipeline === undefined || pipeline.takes?.(request) === false) return undefined;
    const cachedTokens = (decision.ownBlocks + decision.fetchedBlocks) * blockTokens;
    const prefixes = this.#groupPrefixes?.known(this.#nowUs) ?? (() => []);
    const up = this.#view.up.with(decodeAt, 0);
    const view = { ...this.#view, up, pending: this.#queues.pending, prefills: this.#groupPrefills, prefixes };
    const choice = chooseGroup(promptTokens, { ...decision, cachedTokens }, view, pipeline);
    if (choice === undefined) return undefined;
    const { prefix, savedUs } = choice;
    const patienceUs = Math.ceil((prefix?.transferUs ?? 0) + savedUs);
    return { choice, prefix: prefix && { blocks: prefix.blocks, from: prefix.from, patienceUs } };
  }

  /** What an instance has of the prompt that was asked about last. */
  cachedTokens(instance: InstanceIndex): number {
    return (this.#matches?.blocks[instance] ?? 0) * (this.#config?.blockTokens ?? 1);
  }

  /** The instances among which the prompt that was asked about last could go. */
  considered(promptTokens: number): readonly Considered[] {
    const { up, requests, queueUs, kind } = this.#view;
    const seen: Considered[] = [];
    for (let instance = 0; instance < up.length; instance++) {
      if (up[instance] === 0) continue;
      const matchedTokens = this.cachedTokens(instance);
      const prefillUs = this.#predictors[kind[instance]].prefillUs(promptTokens, matchedTokens);
      seen.push({ instance, requests: requests[instance], matchedTokens, queueUs: queueUs[instance], prefillUs });
    }
    return seen;
  }

  /** (instances): predicted wait for a prefill that comes now. Valid until the next question. */
  waitsUs(nowUs: number): Float64Array {
    this.#queues.predict(nowUs, this.#view.queueUs);
    return this.#view.queueUs;
  }

  /** Mean wait for a prefill that comes now, over the instances that take prompts. */
  waitUs(nowUs: number): number {
    const { up, queueUs } = this.#view;
    this.#queues.predict(nowUs, queueUs);
    let sum = 0;
    let count = 0;
    for (let i = 0; i < up.length; i++) {
      sum += up[i] * queueUs[i];
      count += up[i];
    }
    return count === 0 ? 0 : sum / count;
  }

  /** The request goes there, and then to `decodeAt`. @param share of the members of a group */
  place(
    nowUs: number,
    request: Request,
    promptTokens: number,
    decision: PlacementDecision,
    {
      decodeAt,
      share,
    }: { readonly decodeAt?: InstanceIndex | undefined; readonly share?: GroupShare | undefined } = {},
  ): PlacementRecords {
    const { instance, from, fetchedBlocks, readyUs } = decision;
    const { blockTokens = 1 } = this.#config ?? plain;
    const prefillUs = share?.workUs ?? decision.prefillUs;
    const helpers = share?.members.slice(1) ?? nobody;
    if (from !== undefined) this.#transfers?.add(nowUs, from, instance, fetchedBlocks * blockTokens);
    this.#ssds?.add(nowUs, instance, decision.ssdBlocks * blockTokens);
    if (from !== undefined) this.#ssds?.add(nowUs, from, decision.fetchedSsdBlocks * blockTokens);
    if (share?.prefix !== undefined) this.#groupPrefixes?.send(nowUs, share.members, share.prefix);
    this.#placed++;
    const computing = new Set(share?.members ?? [instance]);
    for (const member of computing) {
      this.#view.requests[member]++;
      this.#queues.add(nowUs, member, prefillUs);
    }
    const chain = this.#config?.chainOf(request);
    return { instance, helpers, computing, promptTokens, chain, prefillUs, readyUs: nowUs + readyUs, decodeAt };
  }

  /**
   * It runs, with what the instance itself found of its prompt.
   *
   * @param overtaken its first tokens came before this word
   */
  started(nowUs: number, placed: PlacementRecords, cachedTokens: number, overtaken: boolean): BlockFates | undefined {
    const { chain, prefillUs, promptTokens, instance, decodeAt } = placed;
    // Its keys and values leave as they are computed: they stand before what is asked for from now on.
    if (decodeAt !== undefined && !overtaken) this.#transfers?.add(nowUs, instance, decodeAt, promptTokens);
    if (chain === undefined || this.#index === undefined || this.#config === undefined) return undefined;
    if (prefillUs === undefined && !overtaken) return undefined;
    const { blockTokens } = this.#config;
    if (placed.helpers.length === 0 && prefillUs !== undefined) {
      const correctedUs = this.#predictors[this.#view.kind[instance]].prefillUs(promptTokens, cachedTokens);
      this.#queues.correct(instance, prefillUs, correctedUs);
      placed.prefillUs = correctedUs;
    }
    const found = blockFates(this.#index, chain, { blockTokens, promptTokens, cachedTokens });
    this.hitBlocks += found.hits;
    this.misses.neverSeen += found.neverSeen;
    this.misses.evicted += found.evicted;
    this.misses.elsewhere += found.elsewhere;
    this.misses.partial += found.partial;
    return found;
  }

  /** Its first token came. */
  prefilled(nowUs: number, placed: PlacementRecords): void {
    if (placed.prefillUs === undefined) return;
    const { instance, computing, prefillUs, readyUs } = placed;
    if (placed.helpers.length === 0) this.#queues.end(nowUs, instance, prefillUs, readyUs);
    else for (const member of computing) this.#queues.endShare(member, prefillUs);
    computing.clear();
    placed.prefillUs = undefined;
  }

  /** A member of a group has done its share. */
  sharePrefilled({ computing, prefillUs }: PlacementRecords, member: InstanceIndex): void {
    if (prefillUs !== undefined && computing.delete(member)) this.#queues.endShare(member, prefillUs);
  }

  /** It ended, or was cancelled. */
  ended({ instance, helpers, computing, prefillUs }: PlacementRecords): void {
    this.#view.requests[instance]--;
    for (const helper of helpers) this.#view.requests[helper]--;
    if (prefillUs !== undefined) for (const member of computing) this.#queues.remove(member, prefillUs);
    computing.clear();
  }

  /** @param isUp it is not lost */
  setTakesPrompts(instance: InstanceIndex, takes: boolean, isUp: boolean): void {
    this.#takesPrompts[instance] = takes;
    this.#view.up[instance] = Number(takes && isUp);
  }

  lost(instance: InstanceIndex): void {
    this.#view.up[instance] = 0;
    this.#checked = false;
    this.#index?.drop(instance);
  }

  /** It takes requests (again). What it holds, its life says. */
  joined(instance: InstanceIndex, incarnation: number | undefined): void {
    this.#view.up[instance] = Number(this.#takesPrompts[instance]);
    this.#checked = false;
    if (incarnation !== undefined) this.#index?.join(instance, incarnation);
  }

  /** Is the instance known to hold the block of the digest at `words[at..at+4]`? Never where nothing is asked. */
  names(instance: InstanceIndex, words: Uint32Array, at: number): boolean {
    return this.#index?.holds(instance, words, at) === true;
  }

  /** Has it told more than is known? */
  isBehind(instance: InstanceIndex, incarnation: number, journal: number): boolean {
    return this.#index?.isBehind(instance, incarnation, journal) === true;
  }

  /** After a `gap` the instance is to tell all that it holds. */
  journal(instance: InstanceIndex, journal: KvEventBatch): BatchVerdict {
    this.#checked = false;
    return this.#index?.apply(instance, journal) ?? 'applied';
  }

  /** False when it is out of date. */
  snapshot(instance: InstanceIndex, snapshot: KvSnapshot): boolean {
    this.#checked = false;
    return this.#index?.restore(instance, snapshot) ?? true;
  }

  /** Throws unless the index is sound. Passes over all of it, if anything was told since the last time. */
  check(): void {
    if (!this.#checked) this.#index?.check();
    this.#checked = true;
  }
}

/** What the decision's instance is to get from another one before the request starts. */
export function fetchOf(decision: PlacementDecision): PrefixFetch | undefined {
  const { from, ownBlocks, fetchedBlocks, transferUs, savedUs } = decision;
  if (from === undefined) return undefined;
  return { from, blocks: ownBlocks + fetchedBlocks, patienceUs: Math.ceil(transferUs + savedUs), transferUs };
}

const nobody: readonly InstanceIndex[] = [];
const plain: PlacementSettings & { readonly pipeline?: undefined; readonly blockTokens?: undefined } = {
  kind: 'least-loaded',
  seed: [0, 0],
  balancingThreshold: 1,
};
const unpredicted: PrefillPredictor = { prefillUs: () => 0 };
