// The stages of chunked pipeline prefill at one instance: prompts of which it runs a range of the layers, chunk by chunk, as one of a group.

import type { BlockCache } from '../kvcache/block-cache.ts';
import { blocksFor } from '../kvcache/layer-groups.ts';
import type { Activations, PipelineGroup, PipelineMessage } from '../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { StepPredictor, StepShape } from '../protocol/step-shape.ts';
import { outranks } from '../scheduler/batching/sequence.ts';
import { awaitedUs, type BatchLimits } from '../scheduler/batching/step-budget.ts';
import type { Executor, RunningRequest, StepRun } from '../scheduler/executor/executor.ts';
import type { InstanceConfig } from '../scheduler/instance-config.ts';
import type { InstanceTotals } from '../scheduler/instance-totals.ts';
import type { RequestTable } from '../scheduler/request-table.ts';
import type { InFlight, PlannedStep } from '../scheduler/step-in-flight.ts';
import type { Push } from '../transfer/hand-off/hand-offs.ts';
import { type DecodeLeg, type KvSender, startOf } from '../transfer/hand-off/kv-sender.ts';
import { beginAt, comesTo, feedStage, type PipelineStage, passesOf, rangeOf, reach } from './pipeline-stage.ts';
import { StagePrefixes } from './stage-prefixes.ts';

interface Parts<Request, S extends RunningRequest, Plan, Result> {
  readonly work: Executor<Request, S, Plan, Result>;
  readonly cache: BlockCache;
  readonly roster: RequestTable<S>;
  readonly totals: InstanceTotals;
  readonly cost: StepPredictor;
  readonly departures: KvSender<Request, S>;
  readonly limits: BatchLimits;
  readonly contents?: InstanceConfig['contents'];
  readonly rowsHeld?: InstanceConfig['rowsHeld'];
}

/** The instance, as its stages see it. */
interface Owner<Request, S> {
  readonly push: Push<Request>;
  readonly nowUs: () => number;
  readonly serve: (request: Request) => S;
  /** The first member computes the prompt by itself: somebody is short of memory. */
  readonly alone: (request: Request, decode: DecodeLeg) => void;
  /** All members keep memory. */
  readonly started: (served: S) => void;
  /** Its prompt is computed, and what came of it. */
  readonly broke: (nowUs: number, served: S) => void;
  readonly ended: (nowUs: number, served: S, told: readonly GenerationEvent[], reason: 'stop' | 'length') => void;
}

/** Of the time in which stages go before prompts that came later, what those get: short ones would wait long. */
const laterShare = 1 / 2;

/**
 * Chunk c runs here when the member before has done it, and this one chunk c - 1. The first member asks the others for memory; when one is short
 * of it all let go and the first computes alone, so that nobody waits for memory while holding some. Every member sends the keys and values of its
 * own layers to whoever decodes. Who does not answer is asked again, at equal distances.
 */
export class PipelinePrefill<Request extends { readonly id: RequestId }, S extends RunningRequest, Plan, Result> {
  readonly #parts: Parts<Request, S, Plan, Result>;
  readonly #owner: Owner<Request, S>;
  /** Those that are not computed to the end here, in the order of their coming. */
  readonly #stages = new Map<RequestId, PipelineStage<Request, S>>();
  /** What later prompts are owed of the time, up to a step of theirs. */
  #laterUs = 0;
  readonly #turnUs: number;
  readonly prefixes: StagePrefixes<Request>;

  constructor(parts: Parts<Request, S, Plan, Result>, owner: Owner<Request, S>) {
    this.#parts = parts;
    this.prefixes = new StagePrefixes(parts.cache, { ...owner, contents: parts.contents !== undefined });
    this.#owner = owner;
    this.#turnUs = awaitedUs(parts.limits);
  }

  get isEmpty(): boolean {
    return this.#stages.size === 0;
  }

  /** Is there a chunk that comes before the instance's own prompts? Those that came later have had their share. */
  get goFirst(): boolean {
    return this.#laterUs < this.#turnUs && this.#isBefore(this.#ready);
  }

  /** Does one that came before the instance's own prompts wait for its next chunk? It is not to wait for a long step besides. */
  get await(): boolean {
    for (const stage of this.#stages.values()) if (stage.ready > 0) return this.#isBefore(stage);
    return false;
  }

  #isBefore(stage: PipelineStage<Request, S> | undefined): boolean {
    if (stage === undefined) return false;
    const own = this.#parts.roster.firstPrefill;
    return own === undefined || outranks(stage.served.sequence, own);
  }

  /** The oldest prompt that has a chunk to compute. */
  get #ready(): PipelineStage<Request, S> | undefined {
    for (const stage of this.#stages.values())
      if (stage.ready > stage.served.sequence.computed && stage.awaited.size === 0 && !this.#isHeld(stage))
        return stage;
    return undefined;
  }

  /** Only where a group begins: those after it make room for others by what they compute, so that all get on. */
  #isHeld({ index, request }: PipelineStage<Request, S>): boolean {
    return index === 0 && this.#parts.rowsHeld?.(request.id) === true;
  }

  /** The oldest prompt whose next chunk is on its way, where a step could wait for it. */
  get #ahead(): PipelineStage<Request, S> | undefined {
    for (const stage of this.#stages.values())
      if (stage.coming > stage.served.sequence.computed && stage.index > 0) return stage;
    return undefined;
  }

  /** Steps of one's own ran: counted when they end, so that a run of equal ones counts as they do. */
  otherRan(stepUs: ArrayLike<number>): void {
    for (let i = 0; i < stepUs.length && this.#laterUs > 0; i++) this.#laterUs = Math.max(0, this.#laterUs - stepUs[i]);
  }

  /** A prompt comes to the first member of its group; it begins when those before it have left this member. */
  lead(request: Request, group: PipelineGroup): void {
    this.#add(request, group, 0);
    this.#beginNext();
  }

  #add(request: Request, group: PipelineGroup, index: number): PipelineStage<Request, S> {
    const served = this.#owner.serve(request);
    served.sequence.cachedTokens = 0;
    this.#parts.roster.hold(served);
    const awaited = new Set<InstanceIndex>();
    const parts = { request, served, group, index, came: new Map<number, number>() };
    const stage = {
      ...parts,
      ready: 0,
      coming: 0,
      began: false,
      cachedTokens: undefined,
      awaited,
      allHave: Number.MAX_SAFE_INTEGER,
    };
    this.#stages.set(request.id, stage);
    return stage;
  }

  /** Keeps blocks for a share of the layers; false when there is no room. */
  #begin(stage: PipelineStage<Request, S>): boolean {
    const { request, served, group } = stage;
    const range = rangeOf(stage);
    const { cache, cost } = this.#parts;
    // Pages are whole: what a layer has of the last block takes as much as of any other.
    const whole = blocksFor(served.sequence.promptLength, cache.blockTokens) * cache.blockTokens;
    const tokens = Math.ceil(whole * cost.layerShare(range));
    this.prefixes.touch(stage);
    if (!this.#parts.roster.keep(served, tokens)) return false;
    stage.began = true;
    this.#parts.departures.add(request, served, legOf(group), { senders: group.members, range });
    if (stage.index > 0) this.#owner.push({ kind: 'expectRows', id: request.id, from: group.members[stage.index - 1] });
    return true;
  }

  /** Prompts that begin here take their places at all members in the order of their coming; one that finds no room waits for those before it. */
  #beginNext(): void {
    let leads = false;
    for (const stage of [...this.#stages.values()]) {
      if (stage.index > 0) continue;
      if (stage.began) leads = true;
      else if (this.#begin(stage)) {
        this.#enlistAll(stage);
        leads = true;
      } else if (leads) {
        return;
      } else {
        this.#leave(stage.request.id, stage);
        this.#owner.alone(stage.request, legOf(stage.group));
      }
    }
  }

  #enlistAll(stage: PipelineStage<Request, S>): void {
    const { group, awaited } = stage;
    for (const member of group.members) awaited.add(member);
    this.#enlist(stage);
    this.#look(stage, (tokens) => this.#have(stage, group.members[0], tokens));
  }

  /** Returns how many were asked. */
  #enlist({ request, group, awaited }: PipelineStage<Request, S>): number {
    let asked = 0;
    for (const [index, member] of group.members.entries()) {
      if (index === 0 || !awaited.has(member)) continue;
      this.#send(member, { kind: 'enlist', id: request.id, request, group, index });
      asked++;
    }
    return asked;
  }

  /** @param here what it has of the prefix is here, or will not come */
  #look(stage: PipelineStage<Request, S>, here: (tokens: number) => void): void {
    this.prefixes.want(stage, (tokens) => {
      stage.cachedTokens = tokens;
      here(tokens);
    });
  }

  /** A member keeps memory. All do: the prompt is computed behind what they all have of it. False when that was known. */
  #have(stage: PipelineStage<Request, S>, member: InstanceIndex, tokens: number): boolean {
    const { awaited, served } = stage;
    if (!awaited.delete(member)) return false;
    stage.allHave = Math.min(stage.allHave, tokens);
    if (awaited.size > 0) return true;
    beginAt(stage, stage.allHave);
    stage.ready = served.sequence.promptLength;
    return true;
  }

  /** Members that have not answered are asked again. Returns how many. */
  askAgain(): number {
    let said = 0;
    for (const stage of this.#stages.values()) said += this.#enlist(stage);
    return said;
  }

  /** Returns why the message changed nothing, where it did not. */
  hear(from: InstanceIndex, message: PipelineMessage<Request>): string | undefined {
    const { id } = message;
    const stage = this.#stages.get(id);
    switch (message.kind) {
      case 'enlist':
        return this.#enlisted(from, message);
      case 'enlisted':
        return stage !== undefined && this.#have(stage, from, message.cachedTokens)
          ? undefined
          : `request ${id} does not wait for that`;
      case 'unable':
        if (stage?.awaited.has(from) !== true) return `request ${id} does not wait for that`;
        for (const member of stage.group.members.slice(1))
          if (member !== from) this.#send(member, { kind: 'dismiss', id });
        this.#leave(id, stage);
        this.#owner.alone(stage.request, legOf(stage.group));
        this.#beginNext();
        return undefined;
      case 'dismiss':
        if (stage === undefined) this.#parts.roster.bar(id);
        if (stage === undefined) return `request ${id} is not here`;
        this.#leave(id, stage);
        return undefined;
    }
  }

  #enlisted(
    from: InstanceIndex,
    { id, request, group, index }: Extract<PipelineMessage<Request>, { kind: 'enlist' }>,
  ): string | undefined {
    const { roster } = this.#parts;
    const answer = (cachedTokens: number) => this.#send(from, { kind: 'enlisted', id, cachedTokens });
    if (roster.has(id)) {
      // One that comes again is answered alike, once its prefix is here.
      const stage = this.#stages.get(id);
      if (stage === undefined || stage.cachedTokens !== undefined) answer(stage?.cachedTokens ?? 0);
      return `request ${id} is here already`;
    }
    const stage = roster.hasLeft(id) ? undefined : this.#add(request, group, index);
    if (stage !== undefined && this.#begin(stage)) {
      this.#look(stage, answer);
      return undefined;
    }
    if (stage !== undefined) this.#leave(id, stage);
    roster.bar(id);
    this.#send(from, { kind: 'unable', id });
    return undefined;
  }

  /** Before anything was computed. */
  #leave(id: RequestId, { served }: PipelineStage<Request, S>): void {
    this.#stages.delete(id);
    this.prefixes.drop(id);
    this.#parts.departures.drop(id);
    this.#parts.roster.silence(id);
    this.#parts.roster.remove(served, false);
  }

  /** A chunk is here, or on its way from the member before. False when nobody waits for it. */
  feed(event: { readonly kind: 'activations' | 'coming'; readonly id: RequestId } & Activations): boolean {
    const stage = this.#stages.get(event.id);
    return stage !== undefined && (event.kind === 'coming' ? comesTo(stage, event) : feedStage(stage, event));
  }

  /** The next chunk of the oldest prompt that has one, its rows planned. @param ahead or one that is on its way: nothing else is to be done */
  next(ahead = false): PlannedStep<S> | undefined {
    const stage = this.#ready ?? (ahead ? this.#ahead : undefined);
    if (stage === undefined) return undefined;
    const { served, group, index } = stage;
    const ready = Math.max(stage.ready, stage.coming);
    const { computed, promptLength } = served.sequence;
    if (index === 0 && !served.started) this.#start(served);
    const rows = Math.min(group.chunkTokens, ready - computed);
    served.sequence.planned = rows;
    const range = rangeOf(stage);
    const logitRows = Number(index === range.stages - 1 && computed + rows === promptLength);
    const keyRows = rows * computed + (rows * (rows + 1)) / 2;
    const shape: StepShape = { rows, keyRows, decodeRows: 0, decodeKeys: 0, logitRows };
    const predictedUs = Math.round(this.#parts.cost.predictStageUs(shape, range));
    this.#laterUs = Math.min(this.#turnUs, this.#laterUs + (predictedUs * laterShare) / (1 - laterShare));
    const passes = passesOf(stage, computed + rows);
    return { predictedUs, shape, requests: [served], stepsMax: 1, range, passes, background: false };
  }

  #start(served: S): void {
    served.started = true;
    this.#owner.started(served);
  }

  /** The chunk in flight is computed: its outputs go to the next member, or what the client hears first to whoever decodes. */
  commit(nowUs: number, { requests, startedUs }: InFlight<S>, result: Result, stepUs: ArrayLike<number>): void {
    const { work, totals, departures } = this.#parts;
    totals.ran(stepUs);
    const [served] = requests;
    const { id, sequence } = served;
    const stage = this.#stages.get(id);
    if (stage === undefined) return;
    if (work.isUnanswered(result, 0)) {
      // What it waited for did not come: it is waited for here.
      stage.coming = stage.ready;
      return;
    }
    const { group, index } = stage;
    const last = index === group.members.length - 1;
    const passes = passesOf(stage, sequence.computed + sequence.planned);
    if (index === 0) totals.computedPrompt += sequence.planned;
    sequence.computed += sequence.planned;
    reach(stage, sequence.computed);
    if (passes !== undefined) this.#owner.push({ kind: 'pass', id, ...passes });
    sequence.planned = 0;
    if (sequence.computed < sequence.promptLength) return;
    if (last && work.failed(result, firstRow)) {
      this.#owner.broke(nowUs, served);
      return;
    }
    this.drop(id);
    const held: GenerationEvent[] = [];
    const run: StepRun = { startedUs, stepUs };
    const reason = last ? work.commit(served, result, firstRow, run, (_, event) => held.push(event)) : undefined;
    if (last) totals.generated++;
    this.#owner.push({ kind: 'prefilled', id });
    if (reason === undefined) departures.compute(id, held);
    else this.#owner.ended(nowUs, served, [startOf(served), ...held], reason);
  }

  /** Does it have chunks to come, or to compute? */
  has(id: RequestId): boolean {
    return this.#stages.has(id);
  }

  /** What was under way to the member after this one is lost, and whoever decodes will not have its part. Undefined where nothing was. */
  broken(to: InstanceIndex, id: RequestId): S | undefined {
    const stage = this.#stages.get(id);
    if (stage?.group.members[stage.index + 1] !== to) return undefined;
    this.#parts.departures.drop(id);
    return stage.served;
  }

  /** Nothing more is computed of it here. */
  drop(id: RequestId): void {
    this.prefixes.drop(id);
    if (this.#stages.delete(id)) this.#beginNext();
  }

  /** Prompts that keep blocks here and are not computed to the end. */
  keeping(flight: InFlight<S> | undefined): number {
    const cancelled = flight !== undefined && flight.range !== undefined && !this.#stages.has(flight.requests[0].id);
    return this.#stages.size + Number(cancelled);
  }

  #send(to: InstanceIndex, message: PipelineMessage<Request>): void {
    this.#owner.push({ kind: 'send', to, message });
  }

  /** Throws unless every stage has no more computed than came. */
  check(): void {
    for (const [id, { served, ready, coming }] of this.#stages) {
      const { computed, planned, promptLength } = served.sequence;
      if (computed > ready || computed + planned > Math.max(ready, coming) || Math.max(ready, coming) > promptLength)
        throw new Error(`Stages broken: request ${id} has computed ${computed} of ${ready} tokens that came`);
    }
  }
}

const firstRow = { row: 0, scored: 0, samples: true };

function legOf({ decodeAt, decodeIncarnation }: PipelineGroup): DecodeLeg {
  return { to: decodeAt, incarnation: decodeIncarnation };
}
