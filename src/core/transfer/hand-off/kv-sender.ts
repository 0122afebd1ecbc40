// Prompts computed here that another instance decodes.

import { pagesOfLayout } from '../../kvcache/sparsity/slot-pages.ts';
import { meanKept } from '../../kvcache/sparsity/sparse-plan.ts';
import type { PeerMessage } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId, StepNumber } from '../../protocol/ids.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import type { LayerRange } from '../../protocol/step-shape.ts';
import type { BlockCopier } from '../../scheduler/batching/sequence.ts';
import type { OutputRelay, RunningRequest } from '../../scheduler/executor/executor.ts';
import type { EffectSink } from '../../scheduler/step-in-flight.ts';

/** The instance that decodes a prompt. */
export interface DecodeTarget {
  readonly to: InstanceIndex;
  /** Incarnation of that instance, where it is known. */
  readonly incarnation: number | undefined;
}

/** Instances that each send a range of the layers of one prompt. */
interface SenderGroup {
  readonly senders: readonly InstanceIndex[];
  readonly range: LayerRange;
}

/** A prompt that is sent to another instance. It receives the events of its request, and copies the blocks of its sequence. */
class OutgoingPrompt<Request, S extends RunningRequest> implements OutputRelay, BlockCopier {
  readonly #sender: KvSender<Request, S>;
  readonly request: Request;
  readonly running: S;
  readonly target: DecodeTarget;
  /** Tokens whose keys and values are sent. */
  readonly tokens: number;
  /** Undefined: this instance sends all layers. */
  readonly group: SenderGroup | undefined;
  /** False: another sender of the group requests memory for all. */
  readonly requestsMemory: boolean;
  /** Memory is requested at the receiver, and was granted. */
  isRequested: boolean;
  isGranted = false;
  /** Number of the reservation: how many were withdrawn before. */
  reservation = 0;
  /** Leading tokens whose keys and values are sent or queued, from the pages that hold them now. */
  streamed = 0;
  /** Events that the client receives from the receiver, before the first token. */
  readonly held: GenerationEvent[] = [];
  /** All events that the client receives first from the receiver; undefined until the prompt is computed. */
  firstEvents: readonly GenerationEvent[] | undefined;

  /** @param isRequested another sender of the group requests memory for all */
  constructor(
    sender: KvSender<Request, S>,
    request: Request,
    running: S,
    target: DecodeTarget,
    group: SenderGroup | undefined,
    isRequested: boolean,
  ) {
    this.#sender = sender;
    this.request = request;
    this.running = running;
    this.target = target;
    this.tokens = running.sequence.length;
    this.group = group;
    this.requestsMemory = !isRequested;
    this.isRequested = isRequested;
  }

  get id(): RequestId {
    return this.running.id;
  }

  begin(): void {
    this.#sender.request(this);
  }

  hold(event: GenerationEvent): void {
    this.held.push(event);
  }

  complete(events: readonly GenerationEvent[]): void {
    this.#sender.complete(this, events);
  }

  get isWaiting(): boolean {
    return !this.isGranted;
  }

  releasePages(fromToken: number): void {
    this.#sender.halt(this, fromToken);
  }
}

/**
 * A prompt requests memory at its receiver when its prefill starts, streams what is computed once memory is granted, and keeps its blocks
 * until the receiver confirms all of it. Unanswered `reserve` messages are repeated with every report.
 *
 * A preempted prompt withdraws its reservation while a computed prompt waits for receive memory: the computed one keeps blocks here that the
 * preempted one may need. It requests memory again when it runs again.
 *
 * A stream is halted before pages that it may still read are reused or overwritten (preemption, deduplication, an aborted step). It continues
 * from the same token.
 */
export class KvSender<Request, S extends RunningRequest> {
  readonly #sink: EffectSink<Request>;
  /** Keys and values are sent while later layers and chunks are computed; else once the prompt is computed. */
  readonly #layerWise: boolean;
  /** A prompt starts only once it has memory at its receiver, so that no borrowed memory is held meanwhile. */
  readonly #reservesFirst: boolean;
  /** The next reservation of prompts that left their group before they were computed. */
  readonly #nextReservations = new Map<RequestId, number>();
  readonly #prompts = new Map<RequestId, OutgoingPrompt<Request, S>>();

  constructor(sink: EffectSink<Request>, layerWise: boolean, reservesFirst: boolean) {
    this.#sink = sink;
    this.#layerWise = layerWise;
    this.#reservesFirst = reservesFirst;
  }

  get size(): number {
    return this.#prompts.size;
  }

  has(id: RequestId): boolean {
    return this.#prompts.has(id);
  }

  /** Prompts that are computed and keep their blocks. */
  get computed(): number {
    let count = 0;
    for (const { firstEvents } of this.#prompts.values()) if (firstEvents !== undefined) count++;
    return count;
  }

  /** Registers a request whose prompt is handed off once it is computed. */
  add(request: Request, running: S, target: DecodeTarget): void {
    const prompt = this.#add(request, running, target);
    running.sequence.waitsForDecodeMemory = this.#reservesFirst;
    if (this.#reservesFirst) this.request(prompt);
  }

  /**
   * The same for one of several instances that each send a range of the layers. Where prompts reserve first, the first
   * instance requests memory at once, and the others when they compute their first chunk: the group has formed by then.
   */
  addRange(request: Request, running: S, target: DecodeTarget, group: SenderGroup): void {
    const reservesFirst = this.#reservesFirst && group.range.index === 0;
    const prompt = this.#add(request, running, target, group);
    running.sequence.waitsForDecodeMemory = reservesFirst;
    if (reservesFirst) this.request(prompt);
  }

  /** The group of the prompt has not formed. What the first instance has reserved is withdrawn: it may reserve for itself. */
  leaveGroup(id: RequestId): void {
    const prompt = this.#prompts.get(id);
    if (prompt === undefined) return;
    if (prompt.requestsMemory && prompt.isRequested) {
      this.#withdraw(prompt, prompt.reservation);
      this.#nextReservations.set(id, prompt.reservation + 1);
    }
    this.#forget(prompt);
  }

  /** Hands off a request that has decoded here: it is parked, and all of it is sent. */
  migrate(request: Request, running: S, target: DecodeTarget): void {
    const prompt = this.#add(request, running, target);
    running.sequence.waitsForDecodeMemory = false;
    this.request(prompt);
    this.complete(prompt, []);
  }

  #add(request: Request, running: S, target: DecodeTarget, group?: SenderGroup): OutgoingPrompt<Request, S> {
    const { id } = running;
    const isRequested = group !== undefined && group.range.index > 0 && !this.#reservesFirst;
    const prompt = new OutgoingPrompt(this, request, running, target, group, isRequested);
    prompt.reservation = this.#nextReservations.get(id) ?? 0;
    this.#nextReservations.delete(id);
    this.#prompts.set(id, prompt);
    running.relay = prompt;
    running.sequence.copier = prompt;
    return prompt;
  }

  /** For checkers: computed prompts that wait for memory at their receivers. */
  *awaitingReceiveMemory(): Iterable<{ readonly id: RequestId; readonly to: InstanceIndex }> {
    for (const { id, target, isGranted, firstEvents } of this.#prompts.values())
      if (!isGranted && firstEvents !== undefined) yield { id, to: target.to };
  }

  get #isAnyAwaitingMemory(): boolean {
    for (const { isGranted, firstEvents } of this.#prompts.values())
      if (!isGranted && firstEvents !== undefined) return true;
    return false;
  }

  /** Requests memory at the receiver. */
  request(prompt: OutgoingPrompt<Request, S>): void {
    if (prompt.isRequested && prompt.isGranted) return;
    prompt.isRequested = true;
    this.#reserve(prompt);
  }

  /** Repeats unanswered `reserve` messages. @returns how many */
  resend(): number {
    let repeated = 0;
    for (const prompt of this.#prompts.values()) {
      const { isRequested, requestsMemory, isGranted, firstEvents, reservation } = prompt;
      if (!isRequested && reservation > 0) this.#withdraw(prompt, reservation - 1);
      // Other members of a group request nothing before all of them have begun.
      if (!isRequested || (firstEvents === undefined && (!requestsMemory || isGranted))) continue;
      this.#reserve(prompt);
      repeated++;
    }
    return repeated;
  }

  #reserve(prompt: OutgoingPrompt<Request, S>): void {
    const { request, running, group, target } = prompt;
    const tokens = prompt.tokens > running.sequence.promptLength ? prompt.tokens : undefined;
    const reservation = prompt.reservation === 0 ? undefined : prompt.reservation;
    const { id } = prompt;
    const { incarnation } = target;
    const { sparsity } = running.sequence;
    const slotPages = sparsity && pagesOfLayout(sparsity.layout);
    const senders = group?.senders;
    const sendersRequest = senders !== undefined && this.#reservesFirst ? true : undefined;
    const reserved = { id, request, incarnation, tokens, senders, sendersRequest, reservation, slotPages };
    this.#send(prompt, { kind: 'reserve', ...reserved });
  }

  #withdraw(prompt: OutgoingPrompt<Request, S>, reservation: number): void {
    this.#send(prompt, { kind: 'withdraw', id: prompt.id, reservation });
  }

  /** While a computed prompt waits for receive memory, prompts that wait for blocks here withdraw their reservations. */
  yieldMemory(): void {
    if (this.#prompts.size < 2 || !this.#isAnyAwaitingMemory) return;
    for (const prompt of this.#prompts.values()) {
      const { isGranted, firstEvents, group, running } = prompt;
      if (isGranted && firstEvents === undefined && group === undefined && running.sequence.state === 'waiting')
        this.#withdrawReservation(prompt);
    }
  }

  #withdrawReservation(prompt: OutgoingPrompt<Request, S>): void {
    this.#stopStream(prompt);
    this.#withdraw(prompt, prompt.reservation);
    prompt.isRequested = false;
    prompt.isGranted = false;
    prompt.streamed = 0;
    prompt.reservation++;
    prompt.running.sequence.waitsForDecodeMemory = this.#reservesFirst;
    if (this.#reservesFirst) this.request(prompt);
  }

  /** For checkers: which reservation of a prompt has memory. */
  grantedReservation(id: RequestId): number | undefined {
    const prompt = this.#prompts.get(id);
    return prompt?.isGranted === true ? prompt.reservation : undefined;
  }

  /** Streams layer by layer what the launched step computes. */
  launched(step: StepNumber): void {
    for (const prompt of this.#prompts.values()) {
      // A preempted prompt has withdrawn its reservation.
      if (!prompt.isRequested && prompt.running.sequence.planned > 0) this.request(prompt);
      this.#streamStep(prompt, step);
    }
  }

  /** Streams what is computed of prompts without rows in the step, before it may move to creditors. */
  catchUp(): void {
    for (const prompt of this.#prompts.values()) {
      const { isGranted, firstEvents, streamed, running } = prompt;
      const { computed, planned, arriving } = running.sequence;
      if (
        !isGranted ||
        !this.#isLayerWise(prompt) ||
        firstEvents !== undefined ||
        planned > 0 ||
        arriving !== undefined
      )
        continue;
      if (computed <= streamed) continue;
      this.#stream(prompt, streamed, computed, undefined, undefined);
      prompt.streamed = computed;
    }
  }

  /** Kept tokens are known once the whole prompt is computed. */
  #isLayerWise({ running }: OutgoingPrompt<Request, S>): boolean {
    return this.#layerWise && running.sequence.sparsity === undefined;
  }

  #streamStep(prompt: OutgoingPrompt<Request, S>, step: StepNumber): void {
    const { computed, planned, arriving } = prompt.running.sequence;
    if (!prompt.isGranted || !this.#isLayerWise(prompt) || planned === 0) return;
    const from = prompt.streamed;
    const to = Math.min(computed + planned, prompt.tokens);
    // Blocks that the step waits for are sent as they arrive.
    const here = arriving === undefined ? computed : from;
    if (here > from) this.#stream(prompt, from, here, undefined, undefined);
    if (to > here) this.#stream(prompt, here, to, step, undefined);
    prompt.streamed = to;
  }

  /** A step has ended: streams go back to what is computed. */
  stepEnded(): void {
    for (const prompt of this.#prompts.values())
      if (prompt.firstEvents === undefined) this.halt(prompt, prompt.running.sequence.computed);
  }

  /** Tokens from `fromToken` on are sent again later: recomputed, or from their new pages. */
  halt(prompt: OutgoingPrompt<Request, S>, fromToken: number): void {
    if (prompt.streamed <= fromToken) return;
    prompt.streamed = fromToken;
    this.#sink.emit({ kind: 'haltStream', id: prompt.id, to: prompt.target.to, from: fromToken });
  }

  /** The prompt is computed. Its client receives `events` from the receiver, after `started`, which this instance may not have delivered. */
  complete(prompt: OutgoingPrompt<Request, S>, events: readonly GenerationEvent[]): void {
    prompt.firstEvents = events.length === 0 ? events : [startedEvent(prompt.running), ...prompt.held, ...events];
    if (prompt.isGranted) this.#streamRest(prompt, prompt.firstEvents);
  }

  /** The receiver has granted memory; `step` is in flight. False when no such prompt is sent: the receiver releases the memory. A repeated grant does nothing. */
  granted(id: RequestId, from: InstanceIndex, reservation: number, step: StepNumber | undefined): boolean {
    const prompt = this.#prompts.get(id);
    if (prompt?.target.to !== from) {
      this.#sink.emit({ kind: 'send', to: from, message: { kind: 'release', id } });
      return false;
    }
    if (reservation !== prompt.reservation) {
      this.#withdraw(prompt, reservation);
      return true;
    }
    if (prompt.isGranted) return true;
    prompt.isGranted = true;
    prompt.running.sequence.waitsForDecodeMemory = false;
    if (prompt.firstEvents !== undefined) this.#streamRest(prompt, prompt.firstEvents);
    else if (step !== undefined) this.#streamStep(prompt, step);
    return true;
  }

  /** Ends a hand-off: the receiver has the prompt, or never will. Undefined: no such prompt is sent from here. */
  end(id: RequestId, from: InstanceIndex): S | undefined {
    const prompt = this.#prompts.get(id);
    if (prompt?.target.to !== from) return undefined;
    this.#forget(prompt);
    // The message may answer an earlier transfer of the prompt: the rest of the stream is not needed.
    if (prompt.isGranted) this.#stopStream(prompt);
    return prompt.running;
  }

  /** The request ends here: its stream stops, and the receiver releases its memory. */
  cancel(id: RequestId): void {
    const prompt = this.#prompts.get(id);
    if (prompt === undefined) return;
    this.#forget(prompt);
    if (prompt.isGranted) this.#stopStream(prompt);
    if (prompt.isRequested || prompt.reservation > 0) this.#send(prompt, { kind: 'release', id });
  }

  #forget({ running }: OutgoingPrompt<Request, S>): void {
    this.#prompts.delete(running.id);
    running.relay = undefined;
    running.sequence.copier = undefined;
  }

  #streamRest(prompt: OutgoingPrompt<Request, S>, firstEvents: readonly GenerationEvent[]): void {
    this.#stream(prompt, prompt.streamed, prompt.tokens, undefined, firstEvents);
    prompt.streamed = prompt.tokens;
  }

  #stream(
    { running, target, group, tokens: promptTokens }: OutgoingPrompt<Request, S>,
    from: number,
    end: number,
    step: StepNumber | undefined,
    firstEvents: readonly GenerationEvent[] | undefined,
  ): void {
    const { id } = running;
    const { table } = running.sequence;
    const [to, tokens, range] = [target.to, end - from, group?.range];
    this.#sink.emit({ kind: 'stream', id, to, from, tokens, promptTokens, table, step, firstEvents, range });
  }

  #stopStream({ id, target }: OutgoingPrompt<Request, S>): void {
    this.#sink.emit({ kind: 'stopStream', id, to: target.to, of: 'handoff' });
  }

  #send({ target }: OutgoingPrompt<Request, S>, message: PeerMessage<Request>): void {
    this.#sink.emit({ kind: 'send', to: target.to, message });
  }
}

/** The first event that the client of a prompt receives. */
export function startedEvent({ sequence }: RunningRequest): GenerationEvent {
  const { cachedTokens = 0, sparsity, promptLength } = sequence;
  const started = { kind: 'started', cachedTokens } as const;
  return sparsity === undefined ? started : { ...started, keptTokens: meanKept(sparsity.layout, promptLength) };
}
