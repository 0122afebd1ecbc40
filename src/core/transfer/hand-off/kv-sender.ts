// Prompts computed here that another instance decodes.

import type { PeerMessage } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId, StepNumber } from '../../protocol/ids.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import type { LayerRange } from '../../protocol/step-shape.ts';
import type { BlockCopier } from '../../scheduler/batching/sequence.ts';
import type { OutputRelay, RunningRequest } from '../../scheduler/executor/executor.ts';
import type { EffectSink } from '../../scheduler/step-in-flight.ts';

/** The instance that decodes a prompt. */
export interface DecodeLeg {
  readonly to: InstanceIndex;
  /** Incarnation of that instance, where it is known. */
  readonly incarnation: number | undefined;
}

/** Instances that each send a range of the layers of one prompt. */
interface SenderGroup {
  readonly senders: readonly InstanceIndex[];
  readonly range: LayerRange;
}

/** A prompt that leaves. It takes the events of its request, and copies the blocks of its sequence. */
class OutgoingPrompt<Request, S extends RunningRequest> implements OutputRelay, BlockCopier {
  readonly #sender: KvSender<Request, S>;
  readonly request: Request;
  readonly running: S;
  readonly leg: DecodeLeg;
  /** Tokens whose keys and values are sent. */
  readonly tokens: number;
  /** Undefined: this instance sends all layers. */
  readonly group: SenderGroup | undefined;
  /** Memory is requested at the receiver, and was granted. */
  isRequested: boolean;
  isGranted = false;
  /** Number of the reservation: how many were given up before. */
  reservation = 0;
  /** Leading tokens whose keys and values are on the stream, read from the pages that hold them now. */
  streamed = 0;
  /** Events that the client receives from the receiver, before the first token. */
  readonly held: GenerationEvent[] = [];
  /** Everything that the client receives first from the receiver; undefined until the prompt is computed. */
  first: readonly GenerationEvent[] | undefined;

  constructor(sender: KvSender<Request, S>, request: Request, running: S, leg: DecodeLeg, group?: SenderGroup) {
    this.#sender = sender;
    this.request = request;
    this.running = running;
    this.leg = leg;
    this.tokens = running.sequence.length;
    this.group = group;
    this.isRequested = !this.requests;
  }

  get id(): RequestId {
    return this.running.id;
  }

  /** Of a group of senders the first one requests memory. */
  get requests(): boolean {
    return this.group === undefined || this.group.range.index === 0;
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
 * until the receiver confirms all of it. Unanswered requests are repeated with every report.
 *
 * A prompt that was preempted gives its memory at the receiver up for one that is computed and waits: that one keeps blocks here which the
 * preempted one may need. It requests memory again when it runs again.
 *
 * Before pages that a stream may still read are reused or written again (preemption, deduplication, an aborted step), the stream is halted; it
 * continues from the same token.
 */
export class KvSender<Request, S extends RunningRequest> {
  readonly #sink: EffectSink<Request>;
  /** Keys and values leave while later layers and chunks are computed; else when all are. */
  readonly #layerWise: boolean;
  /** No prompt starts before it has memory at its receiver: with borrowed memory none is held while waiting for that. */
  readonly #reservesFirst: boolean;
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
    for (const { first } of this.#prompts.values()) if (first !== undefined) count++;
    return count;
  }

  /** Hands a request off once its prompt is computed. */
  add(request: Request, running: S, leg: DecodeLeg): void {
    const prompt = this.#add(request, running, leg);
    running.sequence.awaitsDecodeMemory = this.#reservesFirst;
    if (this.#reservesFirst) this.request(prompt);
  }

  /** The same for one of several instances that each send a range of the layers. */
  addRange(request: Request, running: S, leg: DecodeLeg, group: SenderGroup): void {
    this.#add(request, running, leg, group);
    running.sequence.awaitsDecodeMemory = false;
  }

  /** Hands off a request that has decoded here: it is parked, and all of it is sent. */
  move(request: Request, running: S, leg: DecodeLeg): void {
    const prompt = this.#add(request, running, leg);
    running.sequence.awaitsDecodeMemory = false;
    this.request(prompt);
    this.complete(prompt, []);
  }

  #add(request: Request, running: S, leg: DecodeLeg, group?: SenderGroup): OutgoingPrompt<Request, S> {
    const prompt = new OutgoingPrompt(this, request, running, leg, group);
    this.#prompts.set(running.id, prompt);
    running.relay = prompt;
    running.sequence.copier = prompt;
    return prompt;
  }

  /** For checkers: computed prompts that wait for memory at their receivers. */
  *stranded(): Iterable<{ readonly id: RequestId; readonly to: InstanceIndex }> {
    for (const { id, leg, isGranted, first } of this.#prompts.values())
      if (!isGranted && first !== undefined) yield { id, to: leg.to };
  }

  #isAnyStranded(): boolean {
    for (const { isGranted, first } of this.#prompts.values()) if (!isGranted && first !== undefined) return true;
    return false;
  }

  /** Requests memory at the receiver. */
  request(prompt: OutgoingPrompt<Request, S>): void {
    if (prompt.isRequested && prompt.isGranted) return;
    prompt.isRequested = true;
    this.#reserve(prompt);
  }

  /** Repeats requests that were not answered. @returns how many */
  resend(): number {
    let repeated = 0;
    for (const prompt of this.#prompts.values()) {
      const { isRequested, requests, isGranted, first, reservation } = prompt;
      if (!isRequested && reservation > 0) this.#withdraw(prompt, reservation - 1);
      // Other members of a group request nothing before all of them have begun.
      if (!isRequested || (first === undefined && (!requests || isGranted))) continue;
      this.#reserve(prompt);
      repeated++;
    }
    return repeated;
  }

  #reserve(prompt: OutgoingPrompt<Request, S>): void {
    const { request, running, group, leg } = prompt;
    const tokens = prompt.tokens > running.sequence.promptLength ? prompt.tokens : undefined;
    const reservation = prompt.reservation === 0 ? undefined : prompt.reservation;
    const { id } = prompt;
    const { incarnation } = leg;
    this.#send(prompt, { kind: 'reserve', id, request, incarnation, tokens, senders: group?.senders, reservation });
  }

  #withdraw(prompt: OutgoingPrompt<Request, S>, reservation: number): void {
    this.#send(prompt, { kind: 'withdraw', id: prompt.id, reservation });
  }

  /** While a computed prompt waits for memory elsewhere, prompts that wait for blocks here keep none there. */
  yieldMemory(): void {
    if (this.#prompts.size < 2 || !this.#isAnyStranded()) return;
    for (const prompt of this.#prompts.values()) {
      const { isGranted, first, group, running } = prompt;
      if (isGranted && first === undefined && group === undefined && running.sequence.state === 'waiting')
        this.#giveUp(prompt);
    }
  }

  #giveUp(prompt: OutgoingPrompt<Request, S>): void {
    this.#stopStream(prompt);
    this.#withdraw(prompt, prompt.reservation);
    prompt.isRequested = false;
    prompt.isGranted = false;
    prompt.streamed = 0;
    prompt.reservation++;
    prompt.running.sequence.awaitsDecodeMemory = this.#reservesFirst;
    if (this.#reservesFirst) this.request(prompt);
  }

  /** For checkers: which reservation of a prompt has memory. */
  grantedReservation(id: RequestId): number | undefined {
    const prompt = this.#prompts.get(id);
    return prompt?.isGranted === true ? prompt.reservation : undefined;
  }

  /** What a step is about to compute leaves layer by layer, as it is computed. */
  launched(step: StepNumber): void {
    for (const prompt of this.#prompts.values()) {
      // A preempted prompt gave its memory up.
      if (!prompt.isRequested && prompt.running.sequence.planned > 0) this.request(prompt);
      this.#streamStep(prompt, step);
    }
  }

  /** Streams what is computed of prompts without rows in the step, before it may move to creditors. */
  catchUp(): void {
    for (const prompt of this.#prompts.values()) {
      const { isGranted, first, streamed, running } = prompt;
      const { computed, planned, arriving } = running.sequence;
      if (!isGranted || !this.#layerWise || first !== undefined || planned > 0 || arriving !== undefined) continue;
      if (computed <= streamed) continue;
      this.#stream(prompt, streamed, computed, undefined, undefined);
      prompt.streamed = computed;
    }
  }

  #streamStep(prompt: OutgoingPrompt<Request, S>, step: StepNumber): void {
    const { computed, planned, arriving } = prompt.running.sequence;
    if (!prompt.isGranted || !this.#layerWise || planned === 0) return;
    const from = prompt.streamed;
    const to = Math.min(computed + planned, prompt.tokens);
    // Blocks that the step waits for leave as they come.
    const here = arriving === undefined ? computed : from;
    if (here > from) this.#stream(prompt, from, here, undefined, undefined);
    if (to > here) this.#stream(prompt, here, to, step, undefined);
    prompt.streamed = to;
  }

  /** A step has ended: what it did not compute is computed again. */
  stepEnded(): void {
    for (const prompt of this.#prompts.values())
      if (prompt.first === undefined) this.halt(prompt, prompt.running.sequence.computed);
  }

  /** Tokens from `fromToken` on leave again, once they are computed again or from the pages that hold them then. */
  halt(prompt: OutgoingPrompt<Request, S>, fromToken: number): void {
    if (prompt.streamed <= fromToken) return;
    prompt.streamed = fromToken;
    this.#sink.emit({ kind: 'haltStream', id: prompt.id, to: prompt.leg.to, from: fromToken });
  }

  /** The prompt is computed. Its client receives `events` from the receiver, after `started`, which this instance may not have delivered. */
  complete(prompt: OutgoingPrompt<Request, S>, events: readonly GenerationEvent[]): void {
    prompt.first = events.length === 0 ? events : [startedEvent(prompt.running), ...prompt.held, ...events];
    if (prompt.isGranted) this.#streamRest(prompt, prompt.first);
  }

  /** The receiver has granted memory; `step` is in flight. False when the request has left: the receiver releases the memory. A repeated grant does nothing. */
  granted(id: RequestId, from: InstanceIndex, reservation: number, step: StepNumber | undefined): boolean {
    const prompt = this.#prompts.get(id);
    if (prompt?.leg.to !== from) {
      this.#sink.emit({ kind: 'send', to: from, message: { kind: 'release', id } });
      return false;
    }
    if (reservation !== prompt.reservation) {
      this.#withdraw(prompt, reservation);
      return true;
    }
    if (prompt.isGranted) return true;
    prompt.isGranted = true;
    prompt.running.sequence.awaitsDecodeMemory = false;
    if (prompt.first !== undefined) this.#streamRest(prompt, prompt.first);
    else if (step !== undefined) this.#streamStep(prompt, step);
    return true;
  }

  /** The receiver has the prompt, or never will. Undefined: no such prompt leaves here. */
  settle(id: RequestId, from: InstanceIndex): S | undefined {
    const prompt = this.#prompts.get(id);
    if (prompt?.leg.to !== from) return undefined;
    this.#forget(prompt);
    // The message may answer an earlier copy: the rest of the stream is not needed.
    if (prompt.isGranted) this.#stopStream(prompt);
    return prompt.running;
  }

  /** The request ends here: its stream stops, and the receiver releases its memory. */
  drop(id: RequestId): void {
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

  #streamRest(prompt: OutgoingPrompt<Request, S>, held: readonly GenerationEvent[]): void {
    this.#stream(prompt, prompt.streamed, prompt.tokens, undefined, held);
    prompt.streamed = prompt.tokens;
  }

  #stream(
    { running, leg, group, tokens: promptTokens }: OutgoingPrompt<Request, S>,
    from: number,
    end: number,
    step: StepNumber | undefined,
    held: readonly GenerationEvent[] | undefined,
  ): void {
    const { id } = running;
    const { table } = running.sequence;
    const [to, tokens, range] = [leg.to, end - from, group?.range];
    this.#sink.emit({ kind: 'stream', id, to, from, tokens, promptTokens, table, step, held, range });
  }

  #stopStream({ id, leg }: OutgoingPrompt<Request, S>): void {
    this.#sink.emit({ kind: 'stopStream', id, to: leg.to, of: 'handoff' });
  }

  #send({ leg }: OutgoingPrompt<Request, S>, message: PeerMessage<Request>): void {
    this.#sink.emit({ kind: 'send', to: leg.to, message });
  }
}

/** The first event that its client receives of a prompt. */
export function startedEvent({ sequence }: RunningRequest): GenerationEvent {
  return { kind: 'started', cachedTokens: sequence.cachedTokens ?? 0 };
}
