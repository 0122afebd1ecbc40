// Chunked pipeline prefill (Mooncake, section 5.1): this instance computes a range of the layers of a prompt, chunk by chunk.

import { assertNever } from '../../util/assert-never.ts';
import { blocksFor } from '../kvcache/layer-groups.ts';
import type { Activations, InstanceEvent, PipelineGroup, PipelineMessage } from '../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import { isPipelineMessage } from '../protocol/peer-messages.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { StepShape } from '../protocol/step-shape.ts';
import { outranks } from '../scheduler/batching/sequence.ts';
import { shortPrefillUs } from '../scheduler/batching/step-budget.ts';
import {
  type Handled,
  type Identified,
  InstanceComponent,
  type InstanceContext,
  type Submission,
} from '../scheduler/component.ts';
import type { ResultRows, RunningRequest, StepRun } from '../scheduler/executor/executor.ts';
import type { InFlight, PlannedStep, StepOwner } from '../scheduler/step-in-flight.ts';
import { connectionBroke } from '../transfer/hand-off/hand-offs.ts';
import { type DecodeTarget, type KvSender, startedEvent } from '../transfer/hand-off/kv-sender.ts';
import {
  advanceTo,
  announceChunk,
  chunkRows,
  nextMemberOf,
  type PipelineStage,
  rangeOf,
  receiveChunk,
  startBehind,
} from './pipeline-stage.ts';
import { StagePrefixes } from './stage-prefixes.ts';

export interface PipelineConfig {
  /**
   * Backpressure: true while downstream members cannot accept activations. The first member then begins no chunk of the request; a `wake`
   * follows when they can. Undefined: never.
   */
  readonly isBackpressured?: ((id: RequestId) => boolean) | undefined;
}

/** Share of the time that later prompts get while pipelined prompts go first: otherwise short ones would wait long. */
const laterShare = 1 / 2;

/**
 * Member m computes chunk c after chunk c - 1, once member m - 1 has computed chunk c. The first member has the others reserve memory. If one
 * of them has none, all release theirs and the first computes alone: no member waits for memory while it holds some. Every member sends the
 * keys and values of its layers to the instance that decodes. Unanswered messages are repeated with every report.
 *
 * With borrowed memory the first member has a receive buffer at the instance that decodes before any member holds memory: that instance may
 * wait for blocks of the members.
 */
export class PipelinePrefill<Request extends Identified, S extends RunningRequest>
  extends InstanceComponent<Request, S>
  implements StepOwner<S>
{
  readonly #context: InstanceContext<Request, S>;
  readonly #sender: KvSender<Request, S>;
  readonly #config: PipelineConfig;
  /** Prompts that are not fully computed, in the order of arrival. */
  readonly #stages = new Map<RequestId, PipelineStage<Request, S>>();
  /** Prompts whose decode instance has granted them no receive buffer yet; they hold no memory. */
  readonly #reserving = new Set<PipelineStage<Request, S>>();
  readonly #prefixes: StagePrefixes;
  /** Time that later prompts are owed: at most that of a step. */
  #laterUs = 0;
  readonly #turnUs: number;

  constructor(context: InstanceContext<Request, S>, sender: KvSender<Request, S>, config: PipelineConfig) {
    super();
    this.#context = context;
    this.#sender = sender;
    this.#config = config;
    this.#prefixes = new StagePrefixes(context, this);
    this.#turnUs = shortPrefillUs(context.config.limits);
  }

  override handle(event: InstanceEvent<Request, unknown>): Handled {
    switch (event.kind) {
      case 'activations':
      case 'activationsPending':
        if (!this.#receiveActivations(event)) this.#context.ignore(event, `request ${event.id} expects no activations`);
        return 'replan';
      case 'loaded':
        return this.#prefixes.arrived(event.id, event.source, event.to) ? 'cacheOnly' : undefined;
      case 'streamBroken':
        this.#streamBroken(event);
        return 'replan';
      case 'peer':
        if (event.message.kind === 'prefixMissing')
          return this.#prefixes.arrived(event.message.id, event.from, 0) ? 'cacheOnly' : undefined;
        if (!isPipelineMessage(event.message)) return undefined;
        this.#receivePeer(event, event.message);
        return 'replan';
      default:
        return undefined;
    }
  }

  #receivePeer(event: Extract<InstanceEvent<Request>, { kind: 'peer' }>, message: PipelineMessage<Request>): void {
    const why = this.#handleMessage(event.from, message);
    if (why !== undefined) this.#context.ignore(event, why);
  }

  /** Activations to the next member, or keys and values to the instance that decodes, are lost. */
  #streamBroken(event: Extract<InstanceEvent<Request>, { kind: 'streamBroken' }>): void {
    const { to, id, ofActivations } = event;
    const stage = this.#stages.get(id);
    if (stage?.group.members[stage.index + 1] === to) {
      this.#sender.cancel(id);
      this.#context.handedOff(stage.running);
    } else if (ofActivations !== true) {
      this.#context.ignore(event, `request ${id} is not handed off here`);
      return;
    }
    this.#context.announce(connectionBroke(event));
  }

  override get hasWaiting(): boolean {
    return this.#stages.size > 0;
  }

  override get needsShortStep(): boolean {
    for (const stage of this.#stages.values()) if (stage.ready > 0) return this.#isBeforeBatch(stage);
    return false;
  }

  override ownStep(urgent: boolean): PlannedStep<S> | undefined {
    const ready = this.#ready;
    if (!urgent) return this.#planChunk(ready ?? this.#pendingStage);
    return this.#laterUs < this.#turnUs && this.#isBeforeBatch(ready) ? this.#planChunk(ready) : undefined;
  }

  #isBeforeBatch(stage: PipelineStage<Request, S> | undefined): boolean {
    if (stage === undefined) return false;
    const own = this.#context.requests.firstPrefill;
    return own === undefined || outranks(stage.running.sequence, own);
  }

  /** The oldest prompt that has a chunk to compute. */
  get #ready(): PipelineStage<Request, S> | undefined {
    for (const stage of this.#stages.values())
      if (stage.ready > stage.running.sequence.computed && stage.joining.size === 0 && !this.#isBackpressured(stage))
        return stage;
    return undefined;
  }

  /** Only the first member holds back: the others free buffers by computing, so that all progress. */
  #isBackpressured({ index, request }: PipelineStage<Request, S>): boolean {
    return index === 0 && this.#config.isBackpressured?.(request.id) === true;
  }

  /** The oldest prompt whose next chunk is in transit: a step over it begins and waits. */
  get #pendingStage(): PipelineStage<Request, S> | undefined {
    for (const stage of this.#stages.values())
      if (stage.announced > stage.running.sequence.computed && stage.index > 0) return stage;
    return undefined;
  }

  /** Counts the scheduler's steps when they end, so that a run of equal steps counts like single steps. */
  override afterStep({ range }: InFlight<S>, stepUs: ArrayLike<number> | undefined): void {
    if (range !== undefined || stepUs === undefined) return;
    for (let i = 0; i < stepUs.length && this.#laterUs > 0; i++) this.#laterUs = Math.max(0, this.#laterUs - stepUs[i]);
  }

  /** The first member of a group takes over its prompts, in the order of arrival. */
  override takeOver(request: Request, { group }: Submission<Request>): boolean {
    if (group === undefined) return false;
    this.#add(request, group, 0);
    this.#beginNext();
    return true;
  }

  #add(request: Request, group: PipelineGroup, index: number): PipelineStage<Request, S> {
    const running = this.#context.create(request);
    running.sequence.cachedTokens = 0;
    this.#context.requests.addParked(running);
    const stage = {
      ...{ request, running, group, index, ready: 0, announced: 0, began: false },
      chunks: new Map<number, number>(),
      cachedTokens: undefined,
      joining: new Set<InstanceIndex>(),
      commonTokens: Number.MAX_SAFE_INTEGER,
    };
    this.#stages.set(request.id, stage);
    if (index === 0) this.#reserve(stage);
    return stage;
  }

  /** The first member registers the prompt with its sender, which may request memory at the decode instance first. */
  #reserve(stage: PipelineStage<Request, S>): void {
    this.#addToSender(stage);
    if (stage.running.sequence.waitsForDecodeMemory) this.#reserving.add(stage);
  }

  #addToSender(stage: PipelineStage<Request, S>): void {
    const { request, running, group } = stage;
    this.#sender.addRange(request, running, decodeTargetOf(group), { senders: group.members, range: rangeOf(stage) });
  }

  /** Prompts with a receive buffer begin. */
  #beginReserved(): void {
    if (this.#reserving.size === 0) return;
    const { size } = this.#reserving;
    for (const stage of this.#reserving)
      if (!stage.running.sequence.waitsForDecodeMemory) this.#reserving.delete(stage);
    if (this.#reserving.size < size) this.#beginNext();
  }

  /** Allocates blocks for a share of the layers; false when pages are short. */
  #begin(stage: PipelineStage<Request, S>): boolean {
    const { request, running, group } = stage;
    const range = rangeOf(stage);
    const { blockTokens, cost } = this.#context.config;
    // Pages are whole: the last block of a layer takes as much memory as any other.
    const whole = blocksFor(running.sequence.length, blockTokens) * blockTokens;
    const tokens = Math.ceil(whole * cost.layerShare(range));
    this.#prefixes.touch(stage);
    if (!this.#context.requests.allocate(running, tokens)) return false;
    stage.began = true;
    if (stage.index > 0) this.#addToSender(stage);
    if (stage.index > 0)
      this.#context.emit({ kind: 'expectActivations', id: request.id, from: group.members[stage.index - 1] });
    return true;
  }

  /** Prompts that begin here reserve memory at all members in the order of arrival; one that gets none waits for those before it. */
  #beginNext(): void {
    let leads = false;
    for (const stage of [...this.#stages.values()]) {
      if (stage.index > 0 || this.#reserving.has(stage)) continue;
      if (stage.began) leads = true;
      else if (this.#begin(stage)) {
        this.#startJoining(stage);
        leads = true;
      } else if (leads) return;
      else this.#computeAlone(stage);
    }
  }

  #computeAlone(stage: PipelineStage<Request, S>): void {
    const { decodeAt, decodeIncarnation } = stage.group;
    this.#leave(stage.request.id, stage);
    this.#context.schedule(stage.request, { decodeAt, decodeIncarnation });
    const running = this.#context.requests.get(stage.request.id);
    if (running !== undefined) running.leftGroup = true;
  }

  #startJoining(stage: PipelineStage<Request, S>): void {
    for (const member of stage.group.members) stage.joining.add(member);
    this.#sendJoins(stage);
    this.#prefixes.fetch(stage);
  }

  /** Sends `joinPipeline` to the members that have not joined. @returns how many */
  #sendJoins({ request, group, joining }: PipelineStage<Request, S>): number {
    let sent = 0;
    for (const [index, member] of group.members.entries()) {
      if (index === 0 || !joining.has(member)) continue;
      this.#send(member, { kind: 'joinPipeline', id: request.id, request, group, index });
      sent++;
    }
    return sent;
  }

  prefixReady(stage: PipelineStage<Request, S>, tokens: number): void {
    stage.cachedTokens = tokens;
    const [first] = stage.group.members;
    if (stage.index === 0) this.#joined(stage, first, tokens);
    else this.#send(first, { kind: 'joinedPipeline', id: stage.request.id, cachedTokens: tokens });
  }

  /** A member has memory. Once all have, the prompt is computed behind the prefix that all of them have. False when it had joined before. */
  #joined(stage: PipelineStage<Request, S>, member: InstanceIndex, tokens: number): boolean {
    const { joining, running } = stage;
    if (!joining.delete(member)) return false;
    stage.commonTokens = Math.min(stage.commonTokens, tokens);
    if (joining.size > 0) return true;
    startBehind(stage, stage.commonTokens);
    stage.ready = running.sequence.length;
    return true;
  }

  override resend(): void {
    let repeated = 0;
    for (const stage of this.#stages.values()) repeated += this.#sendJoins(stage);
    this.#context.config.messageCounts?.count('lost', 'joinPipeline', repeated);
  }

  /** Returns why the message changed nothing. */
  #handleMessage(from: InstanceIndex, message: PipelineMessage<Request>): string | undefined {
    const { id } = message;
    const stage = this.#stages.get(id);
    switch (message.kind) {
      case 'joinPipeline':
        return this.#join(from, message);
      case 'joinedPipeline':
        return stage !== undefined && this.#joined(stage, from, message.cachedTokens)
          ? undefined
          : `request ${id} does not wait for instance ${from}`;
      case 'declinePipeline':
        if (stage?.joining.has(from) !== true) return `request ${id} does not wait for instance ${from}`;
        for (const member of stage.group.members.slice(1))
          if (member !== from) this.#send(member, { kind: 'leavePipeline', id });
        this.#computeAlone(stage);
        this.#beginNext();
        return undefined;
      case 'leavePipeline':
        if (stage === undefined) {
          this.#context.requests.markLeft(id);
          return `request ${id} is not here`;
        }
        this.#leave(id, stage);
        return undefined;
      default:
        return assertNever(message);
    }
  }

  #join(
    from: InstanceIndex,
    { id, request, group, index }: Extract<PipelineMessage<Request>, { kind: 'joinPipeline' }>,
  ): string | undefined {
    const { requests } = this.#context;
    if (requests.has(id)) {
      // A repeated message is answered like the first one, once the prefix is here.
      const stage = this.#stages.get(id);
      if (stage === undefined || stage.cachedTokens !== undefined)
        this.#send(from, { kind: 'joinedPipeline', id, cachedTokens: stage?.cachedTokens ?? 0 });
      return `request ${id} is here already`;
    }
    const stage = requests.hasLeft(id) ? undefined : this.#add(request, group, index);
    if (stage !== undefined && this.#begin(stage)) {
      this.#prefixes.fetch(stage);
      return undefined;
    }
    if (stage !== undefined) this.#leave(id, stage);
    requests.markLeft(id);
    this.#send(from, { kind: 'declinePipeline', id });
    return undefined;
  }

  /** The stage ends before anything was computed. */
  #leave(id: RequestId, { running }: PipelineStage<Request, S>): void {
    this.#stages.delete(id);
    this.#prefixes.cancel(id);
    this.#sender.leaveGroup(id);
    this.#context.requests.close(id);
    this.#context.requests.remove(running, false);
  }

  /** A chunk has arrived, or the previous member computes it. False when no stage waits for it. */
  #receiveActivations(
    event: { readonly kind: 'activations' | 'activationsPending'; readonly id: RequestId } & Activations,
  ): boolean {
    const stage = this.#stages.get(event.id);
    return (
      stage !== undefined &&
      (event.kind === 'activationsPending' ? announceChunk(stage, event) : receiveChunk(stage, event))
    );
  }

  #planChunk(stage: PipelineStage<Request, S> | undefined): PlannedStep<S> | undefined {
    if (stage === undefined) return undefined;
    const { running, index } = stage;
    const ready = Math.max(stage.ready, stage.announced);
    const { computed, length } = running.sequence;
    if (index === 0 && !running.started) this.#context.begin(running);
    const rows = Math.min(chunkRows(stage), ready - computed);
    running.sequence.planned = rows;
    const range = rangeOf(stage);
    const last = index === range.stages - 1;
    const logitRows = last ? running.sequence.scoredRows + Number(computed + rows === length) : 0;
    const keyRows = rows * computed + (rows * (rows + 1)) / 2;
    const shape: StepShape = { rows, keyRows, decodeRows: 0, decodeKeys: 0, logitRows };
    const predictedUs = Math.round(this.#context.config.cost.predictStageUs(shape, range));
    this.#laterUs = Math.min(this.#turnUs, this.#laterUs + (predictedUs * laterShare) / (1 - laterShare));
    const activationsOut = nextMemberOf(stage, computed + rows);
    return {
      owner: this,
      predictedUs,
      shape,
      requests: [running],
      stepsMax: 1,
      range,
      activationsOut,
      background: false,
    };
  }

  /** The chunk in flight is computed: its activations go to the next member, or the first token to the instance that decodes. */
  commit({ requests: [running], startedUs }: InFlight<S>, result: unknown, stepUs: ArrayLike<number>): void {
    const { executor, totals } = this.#context;
    totals.stepsRan(stepUs);
    const { id, sequence } = running;
    const stage = this.#stages.get(id);
    if (stage === undefined) return;
    if (executor.sequenceFailed(result, 0)) {
      // The chunk that the step waited for did not arrive: the next step begins once it is here.
      stage.announced = stage.ready;
      return;
    }
    const { group, index } = stage;
    const last = index === group.members.length - 1;
    const activationsOut = nextMemberOf(stage, sequence.computed + sequence.planned);
    if (index === 0) totals.computedPrompt += sequence.planned;
    const rows = { row: 0, scored: last ? sequence.scoredRows : 0, samples: last && sequence.samplesNow };
    sequence.computed += sequence.planned;
    advanceTo(stage, sequence.computed);
    if (activationsOut !== undefined) this.#context.emit({ kind: 'sendActivations', id, ...activationsOut });
    sequence.planned = 0;
    const failure = last ? executor.failure(result, rows) : undefined;
    const run = { startedUs, stepUs };
    if (failure !== undefined) this.#context.failRows(running, failure);
    else if (sequence.computed === sequence.length) this.#complete(running, result, rows, run);
    else if (rows.scored > 0) executor.commit(running, result, rows, run, (_, event) => running.relay?.hold(event));
  }

  #complete(running: S, result: unknown, rows: ResultRows, run: StepRun): void {
    const { executor, totals } = this.#context;
    const { id, relay } = running;
    this.#endStage(id);
    const last = rows.samples;
    const events: GenerationEvent[] = [];
    const reason = last ? executor.commit(running, result, rows, run, (_, event) => events.push(event)) : undefined;
    if (last) totals.generated++;
    this.#context.emit({ kind: 'prefilled', id });
    if (reason === undefined) relay?.complete(events);
    else this.#context.finish(running, [startedEvent(running), ...(relay?.held ?? []), ...events], reason);
  }

  /** True while chunks of the request are expected, or not computed. */
  has(id: RequestId): boolean {
    return this.#stages.has(id);
  }

  override releaseRequest(id: RequestId): boolean {
    this.#endStage(id);
    return false;
  }

  #endStage(id: RequestId): void {
    this.#prefixes.cancel(id);
    const stage = this.#stages.get(id);
    if (stage === undefined) return;
    this.#reserving.delete(stage);
    this.#stages.delete(id);
    this.#beginNext();
  }

  override advance(): void {
    this.#beginReserved();
    this.#prefixes.advance(this.#context.nowUs);
  }

  override get nextUs(): number {
    return this.#prefixes.nextUs;
  }

  override parked(flight: InFlight<S> | undefined): number {
    const cancelled = flight?.range !== undefined && !this.#stages.has(flight.requests[0].id);
    return this.#stages.size + Number(cancelled);
  }

  #send(to: InstanceIndex, message: PipelineMessage<Request>): void {
    this.#context.emit({ kind: 'send', to, message });
  }

  /** Throws if a stage has computed more than arrived. */
  override check(): void {
    for (const [id, { running, ready, announced }] of this.#stages) {
      const { computed, planned, length } = running.sequence;
      if (computed > ready || computed + planned > Math.max(ready, announced) || Math.max(ready, announced) > length)
        throw new Error(`Pipeline broken: request ${id} has computed ${computed} of ${ready} tokens that arrived`);
    }
  }
}

function decodeTargetOf({ decodeAt: to, decodeIncarnation: incarnation }: PipelineGroup): DecodeTarget {
  return { to, incarnation };
}
