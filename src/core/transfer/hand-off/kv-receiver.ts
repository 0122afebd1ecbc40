// Prompts computed elsewhere that go on here.
import type { ReceivedPrompt } from '../../kvcache/receive-pages.ts';
import type { PeerMessage } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import { RecentIds } from '../../scheduler/recent-ids.ts';
import type { Push } from './hand-offs.ts';
import type { ReceiveMemory } from './receive-memory.ts';

/** A prompt on its way in. */
interface Arrival<Request> {
  readonly request: Request;
  readonly senders: readonly InstanceIndex[];
  readonly tokens: number;
  /** How often its sender had asked, and given up, before. */
  readonly asking: number;
  granted: boolean;
  /** Senders whose part is not here yet. */
  readonly missing: Set<InstanceIndex>;
  /** What the client hears first; undefined until all has landed. */
  held: readonly GenerationEvent[] | undefined;
  /** The same, as far as it has come. */
  first: readonly GenerationEvent[];
}

/** Prompts computed elsewhere land in memory set aside and stay there until they are loaded: it is granted in the order of asking, as much as there is. */
export class KvReceiver<Request> {
  readonly #memory: ReceiveMemory;
  readonly #push: Push<Request>;
  readonly #arrivals = new Map<RequestId, Arrival<Request>>();
  /** Landed, in order, and not yet looked at. */
  #landed: RequestId[] = [];
  readonly #gone = new RecentIds();
  /** Askings that were given up. */
  readonly #withdrawn = new RecentIds();

  constructor(memory: ReceiveMemory, push: Push<Request>) {
    this.#memory = memory;
    this.#push = push;
  }

  get size(): number {
    return this.#arrivals.size;
  }

  /** Asked a second time it answers as the first time, or that all is here (or was); memory that can never be had is declined. What was given up is not kept again. */
  reserve(
    from: InstanceIndex,
    { id, request, senders = [from], asking = 0 }: Extract<PeerMessage<Request>, { kind: 'reserve' }>,
    tokens: number,
  ): void {
    if (this.#withdrawn.has(askingOf(id, asking))) return;
    const earlier = this.#arrivals.get(id);
    // Its sender has given that one up, which was not heard.
    if (earlier !== undefined && earlier.asking < asking) this.withdraw(from, id, earlier.asking);
    const known = this.#arrivals.get(id);
    if (known !== undefined) {
      if (!known.missing.has(from)) this.#answer(from, { kind: 'taken', id });
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
    this.#arrivals.set(id, { request, senders, tokens, asking, granted: false, missing, held: undefined, first: [] });
    this.#grant();
  }

  /** All of it, or a sender's part, is here: whoever sent it may let go. Of a request that left meanwhile that is all there is to say. */
  land(from: InstanceIndex, id: RequestId, held: readonly GenerationEvent[]): boolean {
    this.#answer(from, { kind: 'taken', id });
    const arrival = this.#arrivals.get(id);
    if (arrival?.missing.delete(from) !== true) return false;
    if (held.length > 0) arrival.first = held;
    if (arrival.missing.size > 0) return true;
    arrival.held = arrival.first;
    this.#landed.push(id);
    return true;
  }

  /** Those that have landed since the last call, in order. */
  takeLanded(): readonly {
    readonly id: RequestId;
    readonly request: Request;
    readonly held: readonly GenerationEvent[];
    /** Of those who computed it nobody has all. */
    readonly inParts: boolean;
  }[] {
    if (this.#landed.length === 0) return [];
    const landed = [];
    for (const id of this.#landed) {
      const arrival = this.#arrivals.get(id);
      if (arrival?.held === undefined) continue;
      const { request, held, senders } = arrival;
      landed.push({ id, request, held, inParts: senders.length > 1 });
    }
    this.#landed = [];
    return landed;
  }

  /** Those that have memory, or wait for some, and have not landed. */
  *awaited(): Iterable<RequestId> {
    for (const [id, { held }] of this.#arrivals) if (held === undefined) yield id;
  }

  /** The pages that it has landed in, where they are of the pool. */
  pagesOf(id: RequestId): ReceivedPrompt | undefined {
    return this.#memory.landed(id);
  }

  /** All, in the order of asking: whether they have memory, and whose parts have not landed. */
  *all(): Iterable<{
    readonly id: RequestId;
    readonly asking: number;
    readonly granted: boolean;
    readonly missing: ReadonlySet<InstanceIndex>;
  }> {
    for (const [id, { asking, granted, missing }] of this.#arrivals) yield { id, asking, granted, missing };
  }

  /** What the client hears first of a request that has landed. */
  heldOf(id: RequestId): readonly GenerationEvent[] | undefined {
    return this.#arrivals.get(id)?.held;
  }

  /** Nothing will come any more. False when it is not known, or the sender's part has landed: then this is late. */
  release(from: InstanceIndex, id: RequestId): boolean {
    const arrival = this.#arrivals.get(id);
    return arrival?.missing.has(from) === true && this.drop(id);
  }

  /** Nothing will come for that asking, and another may follow. False when it is not known: then this is late, or came first. */
  withdraw(from: InstanceIndex, id: RequestId, asking: number): boolean {
    this.#withdrawn.add(askingOf(id, asking));
    const arrival = this.#arrivals.get(id);
    if (arrival?.asking !== asking || !arrival.missing.has(from)) return false;
    this.#free(id, arrival);
    return true;
  }

  /** All of it is, or was, here: whoever has something of it lets go. */
  confirm(senders: readonly InstanceIndex[], id: RequestId): void {
    for (const sender of senders) this.#answer(sender, { kind: 'taken', id });
  }

  /** Loaded, refused or cancelled: its memory goes to those who wait for some. False when it is not known. */
  drop(id: RequestId): boolean {
    this.#gone.add(id);
    const arrival = this.#arrivals.get(id);
    if (arrival === undefined) return false;
    this.#free(id, arrival);
    return true;
  }

  #free(id: RequestId, { granted, tokens }: Arrival<Request>): void {
    this.#arrivals.delete(id);
    if (granted) this.#memory.give(id, tokens);
    this.#grant();
  }

  /** In order: a long one is not overtaken for ever. */
  #grant(): void {
    for (const [id, arrival] of this.#arrivals) {
      if (arrival.granted) continue;
      if (!this.#memory.take(id, arrival.tokens)) return;
      arrival.granted = true;
      for (const sender of arrival.senders) this.#answer(sender, reserved(id, arrival));
    }
  }

  #answer(to: InstanceIndex, message: PeerMessage<Request>): void {
    this.#push({ kind: 'send', to, message });
  }

  /** Throws unless the memory in use is that of those it was granted to. */
  check(): void {
    let used = 0;
    for (const { granted, tokens } of this.#arrivals.values()) if (granted) used += tokens;
    this.#memory.check(used);
  }
}

/** Of the first asking nothing is said. */
function reserved(id: RequestId, { asking }: { readonly asking: number }): PeerMessage<never> {
  return asking === 0 ? { kind: 'reserved', id } : { kind: 'reserved', id, asking };
}

function askingOf(id: RequestId, asking: number): string {
  return `${asking} ${id}`;
}
