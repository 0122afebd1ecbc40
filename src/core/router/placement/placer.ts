// Selects the instance of a prompt: gives the placement policy the prefix matches, the prefill queues and predicted transfer times.

import { wideZero } from '../../../util/wide-zero.ts';
import { withServedAttentionUs } from '../../cost/dist-attention.ts';
import type { PrefillPredictor } from '../../cost/prefill.ts';
import type { SsdConfig } from '../../cost/ssd-times.ts';
import type { TransferConfig } from '../../cost/transfer-times.ts';
import {
  type BatchVerdict,
  type HeldBlocksListener,
  PrefixIndex,
  PrefixMatches,
} from '../../kvcache/events/prefix-index.ts';
import { PrefixTree } from '../../kvcache/events/prefix-tree.ts';
import { chooseGroup, type GroupChoice, type PipelineSettings } from '../../pipeline/group.ts';
import { GroupPrefixes } from '../../pipeline/group-prefixes.ts';
import type { PipelinePredictor } from '../../pipeline/pipeline-predictor.ts';
import type { GroupPrefix, PrefixFetch, PrefixOffer } from '../../protocol/events.ts';
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { PlacedLoad } from '../../protocol/instance-report.ts';
import type { BlockChain, KvEventBatch, KvSnapshot } from '../../protocol/kv-events.ts';
import type { SharedPrefix } from '../../protocol/ports.ts';
import type { PlacementCandidate, PromptBlockCounts } from '../../protocol/request-trace.ts';
import type { LaterPrefills } from '../admission/tbt-beside.ts';
import { HotPrefixes } from './hot-prefixes.ts';
import { type BlockCounts, countPromptBlocks, type MissReasons, type PlacedPrompt } from './placed-prompt.ts';
import { Placement, type PlacementDecision, type PlacementSettings, prefillOn } from './placement.ts';
import { PredictedCosts } from './predicted-costs.ts';
import { PrefillQueues, type PrefillRank } from './prefill-queues.ts';

export type { PipelineSettings, PlacementSettings };

/** What placement reads of a request. */
export interface PromptModel<Request> {
  /** The full blocks of the prompt. */
  chainOf(request: Request): BlockChain;
  /** Prompts of larger priority are computed first. */
  priorityOf(request: Request): number;
  /** Instances serve the tenants of one priority in turns; '': they do not distinguish tenants. */
  tenantOf(request: Request): string;
  /** True when a pipeline group may compute the prompt. */
  mayPipeline(request: Request): boolean;
}

/** Without a configuration the instance with the fewest requests is chosen, and there is no prefix index. */
export interface PlacerConfig<Request> extends PlacementSettings {
  readonly blockTokens: number;
  readonly prompts: PromptModel<Request>;
  /** (instances): predicts the prefills of each; equal instances share one predictor. */
  readonly predictors: readonly PrefillPredictor[];
  /** Undefined: prefixes never move between instances. */
  readonly transfers: TransferConfig | undefined;
  /** Undefined: no instance has an SSD. */
  readonly ssds?: SsdConfig | undefined;
  /** Longest step of prefill, which a prompt of higher priority waits for; 0 unless given. */
  readonly stepUs?: (() => number) | undefined;
  /** Maximum number of rows of a step that starts before its prefix has arrived. Undefined: steps wait for the whole prefix. */
  readonly aheadRows?: number | undefined;
  /** Pipeline groups for long prompts; `prefills` (instances): predicts them, one for equal instances. Undefined: no groups. */
  readonly pipeline?: (PipelineSettings & { readonly prefills: readonly PipelinePredictor[] }) | undefined;
  /** Initial size of the prefix index, in blocks. */
  readonly blocks: number;
  /** Evicted blocks that the index remembers. */
  readonly rememberedBlocks: number;
  /** Counts the prefixes that prompts share. */
  readonly recordsPrefixes?: boolean;
  /** Receives every change of the prefix index. */
  readonly heldBlocks?: HeldBlocksListener | undefined;
}

/** The part of each member of a pipeline group. */
interface GroupShare {
  readonly members: readonly InstanceIndex[];
  /** Predicted work of each member. */
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
  readonly #costs: PredictedCosts;
  readonly #groupPrefixes: GroupPrefixes | undefined;
  readonly #prefixes: PrefixTree | undefined;
  readonly #hotPrefixes: HotPrefixes | undefined;
  /** (kinds) */
  readonly #groupPrefills: readonly PipelinePredictor[];
  readonly #view: {
    readonly up: Uint8Array;
    readonly requests: Int32Array;
    readonly queueUs: Float64Array;
    readonly kind: Uint8Array;
    readonly slowness: Float64Array;
  };
  #placed = 0;
  #nowUs: number = wideZero;
  #isIndexChecked = true;

  /** @param takesPrompts (instances) */
  constructor(takesPrompts: readonly boolean[], config: PlacerConfig<Request> | undefined) {
    const instances = takesPrompts.length;
    this.#config = config;
    this.#predictors = [...new Set(config?.predictors ?? [unpredicted])];
    this.#queues = new PrefillQueues(instances, config?.stepUs);
    this.#takesPrompts = [...takesPrompts];
    this.#view = {
      up: Uint8Array.from(takesPrompts, Number),
      requests: new Int32Array(instances),
      queueUs: new Float64Array(instances),
      slowness: new Float64Array(instances).fill(1),
      kind: Uint8Array.from({ length: instances }, (_, i) =>
        config === undefined ? 0 : this.#predictors.indexOf(config.predictors[i]),
      ),
    };
    this.#costs = new PredictedCosts({
      predictors: this.#predictors,
      transfers: config?.transfers,
      ssds: config?.ssds,
      aheadRows: config?.aheadRows,
    });
    this.#placement = new Placement(config ?? withoutConfig, this.#costs);
    const prefills = config?.pipeline?.prefills;
    this.#groupPrefills =
      prefills === undefined ? [] : this.#predictors.map((each) => prefills[config?.predictors.indexOf(each) ?? 0]);
    if (config === undefined) return;
    const { blocks, rememberedBlocks: remembered, heldBlocks: listener } = config;
    this.#index = new PrefixIndex({ instances, blocks, remembered, listener });
    this.#matches = new PrefixMatches(instances);
    if (config.recordsPrefixes === true) this.#prefixes = new PrefixTree();
    if (config.copiesHotPrefixes === true) this.#hotPrefixes = new HotPrefixes();
    const sends = this.#placement.kind === 'cache-aware' ? this.#costs.transfers?.times : undefined;
    this.#groupPrefixes = new GroupPrefixes(this.#matches, sends, config.blockTokens);
  }

  get blockTokens(): number {
    return this.#config?.blockTokens ?? 1;
  }

  /** Distinct blocks that instances hold, as far as their events report. */
  get heldBlocks(): number {
    return this.#index?.blocks ?? 0;
  }

  get blocks(): BlockCounts {
    const replication = this.#index?.replication() ?? { blocks: 0, onSeveral: 0, copies: 0 };
    return { hits: this.hitBlocks, misses: this.misses, replication };
  }

  /**
   * Undefined when no instance is up.
   * @param eligible (instances): 1 where the prompt may be computed; ignored when no such instance is up; undefined: everywhere
   */
  choose(nowUs: number, request: Request, promptTokens: number, eligible?: Uint8Array): PlacementDecision | undefined {
    const blockTokens = this.#config?.blockTokens ?? 1;
    this.#nowUs = nowUs;
    this.#costs.nowUs = nowUs;
    if (this.#config !== undefined && this.#index !== undefined && this.#matches !== undefined) {
      const reusable = Math.floor((promptTokens - 1) / blockTokens);
      this.#index.match(this.#config.prompts.chainOf(request), reusable, this.#matches);
      this.#queues.predict(nowUs, this.#view.queueUs, this.#rankOf(request), this.#view.up);
    }
    const query = { number: this.#placed, tokens: promptTokens, blockTokens, matches: this.#matches };
    const up = eligible && this.#view.up.map((each, i) => each & eligible[i]);
    const view = up?.includes(1) ? { ...this.#view, up } : this.#view;
    return this.#placement.choose(query, view);
  }

  /** A group that computes the prompt of the last `choose` sooner than the chosen instance; undefined: none. @param decodeAt is not a member */
  group(
    request: Request,
    promptTokens: number,
    decision: PlacementDecision,
    decodeAt: InstanceIndex,
  ): { readonly choice: GroupChoice; readonly prefix: GroupPrefix | undefined } | undefined {
    const { pipeline } = this.#config ?? withoutConfig;
    if (pipeline === undefined || this.#config?.prompts.mayPipeline(request) !== true) return undefined;
    const cachedTokens = this.cachedTokensOf(decision);
    const prefixes = this.#groupPrefixes?.known(this.#nowUs) ?? (() => []);
    const up = this.#view.up.with(decodeAt, 0);
    const view = { ...this.#view, up, pending: this.#queues.pending, predictors: this.#groupPrefills, prefixes };
    const choice = chooseGroup(promptTokens, { ...decision, cachedTokens }, view, pipeline);
    if (choice === undefined) return undefined;
    const { prefix, savedUs } = choice;
    const patienceUs = Math.ceil((prefix?.transferUs ?? 0) + savedUs);
    return { choice, prefix: prefix && { blocks: prefix.blocks, from: prefix.from, patienceUs } };
  }

  /** Leading tokens of the prompt of the last `choose` that an instance has in its cache. */
  cachedTokens(instance: InstanceIndex): number {
    return (this.#matches?.blocks[instance] ?? 0) * (this.#config?.blockTokens ?? 1);
  }

  /** Leading tokens of the prompt that the chosen instance has, or fetches, before it computes. */
  cachedTokensOf({ localBlocks, fetchedBlocks }: PlacementDecision): number {
    return (localBlocks + fetchedBlocks) * this.blockTokens;
  }

  /** The up instances, with the values that the last `choose` used. */
  candidates(promptTokens: number): readonly PlacementCandidate[] {
    const { up, requests, queueUs } = this.#view;
    const candidates: PlacementCandidate[] = [];
    for (let instance = 0; instance < up.length; instance++) {
      if (up[instance] === 0) continue;
      const matchedTokens = this.cachedTokens(instance);
      const prefillUs = prefillOn(this.#view, this.#costs, instance, promptTokens, matchedTokens);
      candidates.push({ instance, requests: requests[instance], matchedTokens, queueUs: queueUs[instance], prefillUs });
    }
    return candidates;
  }

  /** (instances): predicted wait of a prefill that arrives now. Valid until the next `choose`. */
  waitsUs(nowUs: number): Float64Array {
    this.#queues.predict(nowUs, this.#view.queueUs);
    return this.#view.queueUs;
  }

  /** Mean wait of a prefill that arrives now, over the up instances. */
  meanWaitUs(nowUs: number, others = true): number {
    const { up, queueUs } = this.#view;
    this.#queues.predict(nowUs, queueUs, undefined, undefined, others);
    let sum = 0;
    let count = 0;
    for (let i = 0; i < up.length; i++) {
      sum += up[i] * queueUs[i];
      count += up[i];
    }
    return count === 0 ? 0 : sum / count;
  }

  #rankOf(request: Request): PrefillRank {
    const { prompts } = this.#config ?? {};
    return { priority: prompts?.priorityOf(request) ?? 0, tenant: prompts?.tenantOf(request) ?? '' };
  }

  /** Expected duration of a prefill over its duration without later prompts of higher priority. */
  stretch(request: Request, instance: InstanceIndex): number {
    return this.#queues.stretch(this.#nowUs, instance, this.#rankOf(request).priority, this.#view.up);
  }

  /** Prompts that reach an instance after this one, by recent ones. */
  laterPrefills(): LaterPrefills {
    return this.#queues.arrivals(this.#nowUs, this.#view.up);
  }

  /** Counts a prompt that was sent to its instance. @param share of each member of a group */
  place(
    nowUs: number,
    request: Request,
    promptTokens: number,
    decision: PlacementDecision,
    {
      decodeAt,
      share,
    }: { readonly decodeAt?: InstanceIndex | undefined; readonly share?: GroupShare | undefined } = {},
  ): PlacedPrompt {
    const { instance, from, fetchedBlocks, readyUs } = decision;
    const { blockTokens = 1 } = this.#config ?? withoutConfig;
    const prefillUs = share?.workUs ?? decision.prefillUs;
    const helpers = share?.members.slice(1) ?? none;
    if (from !== undefined) this.#costs.transfers?.times.add(nowUs, from, instance, fetchedBlocks * blockTokens);
    this.#costs.addRead(nowUs, instance, decision.ssdBlocks * blockTokens);
    if (from !== undefined) this.#costs.addRead(nowUs, from, decision.fetchedSsdBlocks * blockTokens);
    if (share?.prefix !== undefined) this.#groupPrefixes?.send(nowUs, share.members, share.prefix);
    this.#placed++;
    const computing = new Set(share?.members ?? [instance]);
    const rank = this.#rankOf(request);
    for (const member of computing) {
      this.#view.requests[member]++;
      this.#queues.add(nowUs, member, prefillUs, rank);
    }
    const chain = this.#config?.prompts.chainOf(request);
    const placed = { instance, helpers, computing, promptTokens, rank, chain };
    return { ...placed, prefillUs, readyUs: nowUs + readyUs, decodeAt, running: false };
  }

  /**
   * The copy of a hot prefix that the instance of the prompt of the last `choose` offers; undefined: none.
   * @param capacityTokens KV tokens that fit into the memory of an instance
   */
  hotPrefix(
    request: Request,
    promptTokens: number,
    decision: PlacementDecision,
    capacityTokens: (instance: InstanceIndex) => number,
  ): PrefixOffer | undefined {
    const [config, matches, costs] = [this.#config, this.#matches, this.#costs];
    if (this.#hotPrefixes === undefined || config === undefined || matches === undefined) return undefined;
    const { blockTokens, prompts } = config;
    const prompt = { chain: prompts.chainOf(request), tokens: promptTokens, blockTokens };
    const known = { decision, matches, view: this.#view, costs, capacityTokens };
    const copy = this.#hotPrefixes.placed(this.#nowUs, { ...prompt, ...known });
    if (copy === undefined) return undefined;
    const { to, blocks, fromBlocks } = copy;
    costs.transfers?.times.add(this.#nowUs, decision.instance, to, (blocks - fromBlocks) * blockTokens);
    return { to, blocks };
  }

  /**
   * The prompt is being computed: corrects the predictions by the tokens that its instance found in its cache.
   * @param overtaken its first output arrived before this report
   */
  started(
    nowUs: number,
    placed: PlacedPrompt,
    cachedTokens: number,
    overtaken: boolean,
  ): PromptBlockCounts | undefined {
    const { chain, prefillUs, promptTokens, instance, decodeAt } = placed;
    // Its KV leaves layer by layer as it is computed: later transfers queue behind it.
    if (decodeAt !== undefined && !overtaken) this.#costs.transfers?.times.add(nowUs, instance, decodeAt, promptTokens);
    if (!overtaken && prefillUs !== undefined && !placed.running) {
      placed.running = true;
      this.#queues.started(nowUs, instance);
    }
    if (chain === undefined || this.#index === undefined || this.#config === undefined) return undefined;
    if (prefillUs === undefined && !overtaken) return undefined;
    const { blockTokens } = this.#config;
    if (placed.helpers.length === 0 && prefillUs !== undefined) {
      const correctedUs = prefillOn(this.#view, this.#costs, instance, promptTokens, cachedTokens);
      this.#queues.correct(instance, prefillUs, correctedUs, placed.rank);
      placed.prefillUs = correctedUs;
    }
    const found = countPromptBlocks(this.#index, chain, { blockTokens, promptTokens, cachedTokens });
    this.#prefixes?.add(nowUs, chain, Math.floor(promptTokens / blockTokens), found.hits);
    this.hitBlocks += found.hits;
    this.misses.neverSeen += found.neverSeen;
    this.misses.evicted += found.evicted;
    this.misses.elsewhere += found.elsewhere;
    this.misses.partial += found.partial;
    return found;
  }

  sharedPrefixes(most: number): readonly SharedPrefix[] {
    return this.#prefixes?.shared(most, (words, at) => this.#index?.holdersOf(words, at) ?? 0) ?? [];
  }

  /** The prefill has ended. */
  prefilled(nowUs: number, placed: PlacedPrompt): void {
    if (placed.prefillUs === undefined) return;
    this.#stopped(placed);
    const { instance, computing, prefillUs, readyUs, rank } = placed;
    if (placed.helpers.length === 0) this.#queues.end(nowUs, instance, prefillUs, readyUs, rank);
    else for (const member of computing) this.#queues.endShare(member, prefillUs, rank);
    computing.clear();
    placed.prefillUs = undefined;
  }

  #stopped(placed: PlacedPrompt): void {
    if (placed.running) this.#queues.stopped(placed.instance);
    placed.running = false;
  }

  /** A member of a group has computed its layers. */
  sharePrefilled({ computing, prefillUs, rank }: PlacedPrompt, member: InstanceIndex): void {
    if (prefillUs !== undefined && computing.delete(member)) this.#queues.endShare(member, prefillUs, rank);
  }

  /** The request has ended or was cancelled. */
  ended(placed: PlacedPrompt): void {
    const { instance, helpers, computing, prefillUs, rank } = placed;
    this.#stopped(placed);
    this.#view.requests[instance]--;
    for (const helper of helpers) this.#view.requests[helper]--;
    if (prefillUs !== undefined) for (const member of computing) this.#queues.remove(member, prefillUs, rank);
    computing.clear();
  }

  /** Prefills that other conductors have placed on the instance. */
  setOthers(instance: InstanceIndex, { prefills }: Pick<PlacedLoad, 'prefills'> = { prefills: [] }): void {
    const works = prefills.map(({ priority, tenant, prompts, tokens, keyRows }) => {
      // As many equal uncached prompts as have the same tokens and keys: both terms of the time are those of the reported prompts.
      const promptTokens = keyRows === undefined ? tokens / prompts : (2 * keyRows) / tokens;
      return {
        ...{ priority, tenant, prompts },
        workUs: (tokens / promptTokens) * prefillOn(this.#view, this.#costs, instance, promptTokens, 0),
      };
    });
    this.#queues.setOthers(instance, works);
  }

  /** Prefills that are placed from now on take longer by it. */
  setServedAttention(instance: InstanceIndex, permille: number): void {
    this.#view.slowness[instance] = withServedAttentionUs(1, permille);
  }

  /** @param isUp the instance has not failed */
  setTakesPrompts(instance: InstanceIndex, takes: boolean, isUp: boolean): void {
    this.#takesPrompts[instance] = takes;
    this.#view.up[instance] = Number(takes && isUp);
  }

  instanceFailed(instance: InstanceIndex): void {
    this.#queues.setOthers(instance, []);
    this.setServedAttention(instance, 0);
    this.#view.up[instance] = 0;
    this.#isIndexChecked = false;
    this.#index?.removeInstance(instance);
  }

  /** The instance is up, and its cache is unknown. */
  instanceJoined(instance: InstanceIndex, incarnation: number | undefined): void {
    this.#view.up[instance] = Number(this.#takesPrompts[instance]);
    this.#isIndexChecked = false;
    if (incarnation !== undefined) this.#index?.instanceJoined(instance, incarnation);
  }

  /** True when the prefix index has the block of the digest at `words[at..at+4]` for the instance. */
  indexHas(instance: InstanceIndex, words: Uint32Array, at: number): boolean {
    return this.#index?.holds(instance, words, at) === true;
  }

  /** True when KV events of the instance are missing. */
  isBehind(instance: InstanceIndex, incarnation: number, kvEventNumber: number): boolean {
    return this.#index?.isBehind(instance, incarnation, kvEventNumber) === true;
  }

  /** Applies KV events. After a `gap` a snapshot of the instance is required. */
  applyEvents(instance: InstanceIndex, batch: KvEventBatch): BatchVerdict {
    this.#isIndexChecked = false;
    return this.#index?.apply(instance, batch) ?? 'applied';
  }

  /** Applies a snapshot; false when it is out of date. */
  restore(instance: InstanceIndex, snapshot: KvSnapshot): boolean {
    this.#isIndexChecked = false;
    return this.#index?.restore(instance, snapshot) ?? true;
  }

  /** Throws unless the prefix index is consistent. Visits all of it, if it has changed since the last call. */
  check(): void {
    if (!this.#isIndexChecked) this.#index?.check();
    this.#isIndexChecked = true;
  }
}

/** The prefix that the chosen instance fetches from another one; undefined: none. */
export function fetchOf(decision: PlacementDecision): PrefixFetch | undefined {
  const { from, localBlocks, fetchedBlocks, transferUs, savedUs } = decision;
  if (from === undefined) return undefined;
  return { from, blocks: localBlocks + fetchedBlocks, patienceUs: Math.ceil(transferUs + savedUs), transferUs };
}

const none: readonly InstanceIndex[] = [];
const withoutConfig: PlacementSettings & { readonly pipeline?: undefined; readonly blockTokens?: undefined } = {
  kind: 'least-loaded',
  seed: [0, 0],
  balancingThreshold: 1,
};
const unpredicted: PrefillPredictor = { prefillUs: () => 0 };
