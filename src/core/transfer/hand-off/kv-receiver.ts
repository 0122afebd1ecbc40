// Prompts computed elsewhere that are decoded here.

import type { ReceivedPrompt } from '../../kvcache/receive-pages.ts';
import type { SlotLayout } from '../../kvcache/sparsity/slot-pages.ts';
import type { PeerMessage } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import { RecentIds } from '../../scheduler/recent-ids.ts';
import type { EffectSink } from '../../scheduler/step-in-flight.ts';
import type { ReceiveMemory } from './receive-memory.ts';

/** A prompt that is expected, or has been received and waits for its first step. */
interface IncomingPrompt<Request> {
  readonly request: Request;
  readonly senders: readonly InstanceIndex[];
  readonly tokens: number;
  /** Slots of a prompt with a KV budget. */
  readonly slots: SlotLayout | undefined;
  /** Number of the reservation: how many its sender has withdrawn before. */
  readonly reservation: number;
  granted: boolean;
  /** Senders that are informed of the grant. */
  readonly requesters: Set<InstanceIndex>;
  /** Senders whose parts have not been received. */
  readonly missing: Set<InstanceIndex>;
  /** Events that the client receives first, from the parts received so far. */
  firstEvents: readonly GenerationEvent[];
}

/** Prompts are received in receive buffers and stay there until they are loaded. Buffers are granted in the order of the requests, while memory lasts. */
export class KvReceiver<Request> {
  readonly #sink: EffectSink<Request>;
  readonly #memory: ReceiveMemory;
  readonly #prompts = new Map<RequestId, IncomingPrompt<Request>>();
  /** Received completely, in order, and not yet scheduled. */
  #received: RequestId[] = [];
  /** Prompts that were loaded, refused or cancelled. */
  readonly #ended = new RecentIds();
  /** Reservations that their senders withdrew. */
  readonly #withdrawn = new RecentIds();

  constructor(sink: EffectSink<Request>, memory: ReceiveMemory) {
    this.#sink = sink;
    this.#memory = memory;
  }

  get size(): number {
    return this.#prompts.size;
  }

  /**
   * A repeated `reserve` is answered like the first one, or with `received` where the prompt is or was here. A prompt that exceeds all receive
   * memory is declined. A withdrawn reservation gets no memory.
   */
  reserve(
    from: InstanceIndex,
    {
      id,
      request,
      senders = [from],
      sendersRequest = false,
      reservation = 0,
    }: Extract<PeerMessage<Request>, { kind: 'reserve' }>,
    tokens: number,
    slots?: SlotLayout,
  ): void {
    if (this.#withdrawn.has(reservationKey(id, reservation))) return;
    const earlier = this.#prompts.get(id);
    // The sender has withdrawn the earlier reservation; that message was lost.
    if (earlier !== undefined && earlier.reservation < reservation) this.withdraw(from, id, earlier.reservation);
    const known = this.#prompts.get(id);
    if (known !== undefined) {
      if (!known.missing.has(from)) this.#answer(from, { kind: 'received', id });
      else if (known.granted) this.#answer(from, reserved(id, known));
      else known.requesters.add(from);
      return;
    }
    if (this.#ended.has(id)) {
      this.confirm(senders, id);
      return;
    }
    if (!this.#memory.fits({ tokens, slots })) {
      this.#answer(from, { kind: 'declined', id });
      return;
    }
    const missing = new Set(senders);
    this.#prompts.set(id, {
      request,
      senders,
      tokens,
      slots,
      reservation,
      granted: false,
      requesters: new Set(sendersRequest ? [from] : senders),
      missing,
      firstEvents: [],
    });
    this.grant();
  }

  /** A prompt, or a sender's part of it, has been received. False when it is not expected; its sender frees the blocks in any case. */
  receive(from: InstanceIndex, id: RequestId, events: readonly GenerationEvent[]): boolean {
    this.#answer(from, { kind: 'received', id });
    const prompt = this.#prompts.get(id);
    if (prompt?.missing.delete(from) !== true) return false;
    if (events.length > 0) prompt.firstEvents = events;
    if (prompt.missing.size === 0) this.#received.push(id);
    return true;
  }

  /** Prompts received completely since the last call, in order. */
  takeReceived(): readonly {
    readonly id: RequestId;
    readonly request: Request;
    readonly firstEvents: readonly GenerationEvent[];
    /** Several instances computed its layers: none of them has all. */
    readonly inParts: boolean;
  }[] {
    if (this.#received.length === 0) return [];
    const received = [];
    for (const id of this.#received) {
      const prompt = this.#prompts.get(id);
      if (prompt === undefined || prompt.missing.size > 0) continue;
      const { request, firstEvents, senders } = prompt;
      received.push({ id, request, firstEvents, inParts: senders.length > 1 });
    }
    this.#received = [];
    return received;
  }

  /** Prompts that have memory, or wait for some, and are not received completely. */
  *expectedPrompts(): Iterable<RequestId> {
    for (const [id, { missing }] of this.#prompts) if (missing.size > 0) yield id;
  }

  /** Pages of the pool that hold the prompt; undefined: it is in host memory. */
  pagesOf(id: RequestId): ReceivedPrompt | undefined {
    return this.#memory.pagesOf(id);
  }

  /** For checkers: all prompts, in the order of their requests. */
  *all(): Iterable<{
    readonly id: RequestId;
    readonly reservation: number;
    readonly granted: boolean;
    readonly missing: ReadonlySet<InstanceIndex>;
  }> {
    for (const [id, { reservation, granted, missing }] of this.#prompts) yield { id, reservation, granted, missing };
  }

  /** The sender will send nothing. False when the prompt is not expected, or the sender's part has been received. */
  release(from: InstanceIndex, id: RequestId): boolean {
    const prompt = this.#prompts.get(id);
    return prompt?.missing.has(from) === true && this.freeBuffer(id);
  }

  /** The sender withdraws a reservation, and may make another. False when that reservation has no memory and waits for none. */
  withdraw(from: InstanceIndex, id: RequestId, reservation: number): boolean {
    this.#withdrawn.add(reservationKey(id, reservation));
    const prompt = this.#prompts.get(id);
    if (prompt?.reservation !== reservation || !prompt.missing.has(from)) return false;
    this.#free(id, prompt);
    return true;
  }

  /** The prompt is or was here: its senders free its blocks. */
  confirm(senders: readonly InstanceIndex[], id: RequestId): void {
    for (const sender of senders) this.#answer(sender, { kind: 'received', id });
  }

  /** The prompt was loaded, refused or cancelled: its receive buffer is granted to others. False when there is none. */
  freeBuffer(id: RequestId): boolean {
    this.#ended.add(id);
    const prompt = this.#prompts.get(id);
    if (prompt === undefined) return false;
    this.#free(id, prompt);
    return true;
  }

  #free(id: RequestId, prompt: IncomingPrompt<Request>): void {
    this.#prompts.delete(id);
    if (prompt.granted) this.#memory.free(id, prompt);
    this.grant();
  }

  /** Gives memory to prompts that wait for it, in the order of the requests: a long one is not overtaken without end. */
  grant(): void {
    for (const [id, prompt] of this.#prompts) {
      if (prompt.granted) continue;
      if (!this.#memory.allocate(id, prompt)) return;
      prompt.granted = true;
      for (const requester of prompt.requesters) this.#answer(requester, reserved(id, prompt));
    }
  }

  #answer(to: InstanceIndex, message: PeerMessage<Request>): void {
    this.#sink.emit({ kind: 'send', to, message });
  }

  /** Throws unless the memory in use is that of granted prompts. */
  check(): void {
    this.#memory.check([...this.#prompts.values()].filter(({ granted }) => granted));
  }
}

/** The first reservation is not numbered. */
function reserved(id: RequestId, { reservation }: { readonly reservation: number }): PeerMessage<never> {
  return reservation === 0 ? { kind: 'reserved', id } : { kind: 'reserved', id, reservation };
}

function reservationKey(id: RequestId, reservation: number): string {
  return `${reservation} ${id}`;
}
