// Prompts computed elsewhere that are decoded here.

import type { ReceivedPrompt } from '../../kvcache/receive-pages.ts';
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
  /** Number of the reservation: how many its sender gave up before. */
  readonly reservation: number;
  granted: boolean;
  /** Senders whose parts are not here. */
  readonly missing: Set<InstanceIndex>;
  /** Events that the client receives first; undefined until all parts are here. */
  held: readonly GenerationEvent[] | undefined;
  /** The same, from the parts that are here. */
  first: readonly GenerationEvent[];
}

/** Prompts are received in memory set aside and stay there until they are loaded. Memory is granted in the order of the requests, as far as it goes. */
export class KvReceiver<Request> {
  readonly #sink: EffectSink<Request>;
  readonly #memory: ReceiveMemory;
  readonly #prompts = new Map<RequestId, IncomingPrompt<Request>>();
  /** Received completely, in order, and not yet taken. */
  #received: RequestId[] = [];
  readonly #gone = new RecentIds();
  /** Reservations that were given up. */
  readonly #withdrawn = new RecentIds();

  constructor(sink: EffectSink<Request>, memory: ReceiveMemory) {
    this.#sink = sink;
    this.#memory = memory;
  }

  get size(): number {
    return this.#prompts.size;
  }

  /**
   * A repeated request is answered as the first one, or with `taken` where the prompt is or was here. A prompt that exceeds all memory is
   * declined. A reservation that was withdrawn gets no memory.
   */
  reserve(
    from: InstanceIndex,
    { id, request, senders = [from], reservation = 0 }: Extract<PeerMessage<Request>, { kind: 'reserve' }>,
    tokens: number,
  ): void {
    if (this.#withdrawn.has(reservationKey(id, reservation))) return;
    const earlier = this.#prompts.get(id);
    // The sender gave the earlier reservation up; that message was lost.
    if (earlier !== undefined && earlier.reservation < reservation) this.withdraw(from, id, earlier.reservation);
    const known = this.#prompts.get(id);
    if (known !== undefined) {
      if (!known.missing.has(from)) this.#answer(from, { kind: 'received', id });
      else if (known.granted) this.#answer(from, reserved(id, known));
      return;
    }
    if (this.#gone.has(id)) {
      this.confirm(senders, id);
      return;
    }
    if (!this.#memory.fits(tokens)) {
      this.#answer(from, { kind: 'declined', id });
      return;
    }
    const missing = new Set(senders);
    this.#prompts.set(id, {
      request,
      senders,
      tokens,
      reservation,
      granted: false,
      missing,
      held: undefined,
      first: [],
    });
    this.#grant();
  }

  /** All of a prompt, or a sender's part of it, is here. False when it is not expected; its sender frees the blocks all the same. */
  receive(from: InstanceIndex, id: RequestId, events: readonly GenerationEvent[]): boolean {
    this.#answer(from, { kind: 'received', id });
    const prompt = this.#prompts.get(id);
    if (prompt?.missing.delete(from) !== true) return false;
    if (events.length > 0) prompt.first = events;
    if (prompt.missing.size > 0) return true;
    prompt.held = prompt.first;
    this.#received.push(id);
    return true;
  }

  /** Prompts received completely since the last call, in order. */
  takeReceived(): readonly {
    readonly id: RequestId;
    readonly request: Request;
    readonly held: readonly GenerationEvent[];
    /** Several instances computed its layers: none of them has all. */
    readonly inParts: boolean;
  }[] {
    if (this.#received.length === 0) return [];
    const received = [];
    for (const id of this.#received) {
      const prompt = this.#prompts.get(id);
      if (prompt?.held === undefined) continue;
      const { request, held, senders } = prompt;
      received.push({ id, request, held, inParts: senders.length > 1 });
    }
    this.#received = [];
    return received;
  }

  /** Prompts that have memory, or wait for some, and are not received completely. */
  *awaited(): Iterable<RequestId> {
    for (const [id, { held }] of this.#prompts) if (held === undefined) yield id;
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

  /** The sender will send nothing. False when the prompt is not known, or the sender's part is here. */
  release(from: InstanceIndex, id: RequestId): boolean {
    const prompt = this.#prompts.get(id);
    return prompt?.missing.has(from) === true && this.drop(id);
  }

  /** The sender gives a reservation up, and may make another. False when that reservation has no memory and waits for none. */
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

  /** The prompt was loaded, refused or cancelled: its memory is granted to others. False when it is not known. */
  drop(id: RequestId): boolean {
    this.#gone.add(id);
    const prompt = this.#prompts.get(id);
    if (prompt === undefined) return false;
    this.#free(id, prompt);
    return true;
  }

  #free(id: RequestId, { granted, tokens }: IncomingPrompt<Request>): void {
    this.#prompts.delete(id);
    if (granted) this.#memory.free(id, tokens);
    this.#grant();
  }

  /** In order, so that a long prompt is never overtaken without end. */
  #grant(): void {
    for (const [id, prompt] of this.#prompts) {
      if (prompt.granted) continue;
      if (!this.#memory.allocate(id, prompt.tokens)) return;
      prompt.granted = true;
      for (const sender of prompt.senders) this.#answer(sender, reserved(id, prompt));
    }
  }

  #answer(to: InstanceIndex, message: PeerMessage<Request>): void {
    this.#sink.emit({ kind: 'send', to, message });
  }

  /** Throws unless the memory in use is that of granted prompts. */
  check(): void {
    let used = 0;
    for (const { granted, tokens } of this.#prompts.values()) if (granted) used += tokens;
    this.#memory.check(used);
  }
}

/** The first reservation is not numbered. */
function reserved(id: RequestId, { reservation }: { readonly reservation: number }): PeerMessage<never> {
  return reservation === 0 ? { kind: 'reserved', id } : { kind: 'reserved', id, reservation };
}

function reservationKey(id: RequestId, reservation: number): string {
  return `${reservation} ${id}`;
}
