// Prompts computed here that go on elsewhere.

import type { PeerMessage } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId, StepNumber } from '../../protocol/ids.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import type { LayerRange } from '../../protocol/step-shape.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { Push } from './hand-offs.ts';

/** Who decodes, and which start of it is meant, where that is known. */
export interface DecodeLeg {
  readonly to: InstanceIndex;
  readonly incarnation: number | undefined;
  /** It does not start before it has memory there: where memory is borrowed nobody holds some while waiting for this. */
  readonly first?: boolean | undefined;
}

/** A prompt on its way out. */
interface Departure<Request, S> {
  readonly request: Request;
  readonly served: S;
  readonly to: InstanceIndex;
  /** Which start of the other side is meant, where that is known. */
  readonly toIncarnation: number | undefined;
  /** Whose keys and values go. */
  readonly tokens: number;
  /** Instances that send a range of the layers each, and which this one sends; undefined: all. */
  readonly senders: readonly InstanceIndex[] | undefined;
  readonly range: LayerRange | undefined;
  /** Of the senders this one asks. */
  readonly asks: boolean;
  /** It does not start before it has memory there. */
  readonly first: boolean;
  /** The other side has been asked for memory, and has given it. */
  asked: boolean;
  granted: boolean;
  /** How often that was given up before. */
  asking: number;
  /** Leading tokens whose keys and values have been put on the stream, from the pages that they are in. */
  streamed: number;
  /** What its client hears of the prompt before that: log-probabilities. */
  readonly told: GenerationEvent[];
  /** What the client hears once the request goes on elsewhere; undefined until the prompt is computed. */
  held: readonly GenerationEvent[] | undefined;
}

const nothingHeld: readonly GenerationEvent[] = [];

/**
 * A departure asks for memory when its prefill starts, streams what is computed as soon as it has been granted, and keeps its blocks until
 * the other side has said that it has all. One that was preempted does not keep memory there from one that is computed: that keeps blocks which the
 * first may need. It gives it up, and asks anew when it runs again. What is not answered is said again, at equal distances. Before pages that may still be read for its
 * stream go to others (it is preempted, or takes equal blocks for its own), or are written once more (a step that did not count), the stream is
 * halted; it goes on from where it was.
 */
export class KvSender<Request, S extends RunningRequest> {
  /** Keys and values leave while the rest is computed; else when all is. */
  readonly #layerWise: boolean;
  readonly #push: Push<Request>;
  readonly #departures = new Map<RequestId, Departure<Request, S>>();

  constructor(layerWise: boolean, push: Push<Request>) {
    this.#layerWise = layerWise;
    this.#push = push;
  }

  get size(): number {
    return this.#departures.size;
  }

  has(id: RequestId): boolean {
    return this.#departures.has(id);
  }

  /** Requests whose prompts are computed, and keep their blocks. */
  get computed(): number {
    let count = 0;
    for (const { held } of this.#departures.values()) if (held !== undefined) count++;
    return count;
  }

  /** @param group of instances that send a range of the layers each; the first of them asks for memory */
  add(
    request: Request,
    served: S,
    { to, incarnation, first = false }: DecodeLeg,
    group?: { readonly senders: readonly InstanceIndex[]; readonly range: LayerRange },
  ): void {
    const { length: tokens } = served.sequence;
    const asks = group === undefined || group.range.index === 0;
    const parts = { senders: group?.senders, range: group?.range };
    const state = { asks, first, asked: !asks, granted: false, asking: 0, streamed: 0, told: [], held: undefined };
    const departure: Departure<Request, S> = {
      request,
      served,
      to,
      toIncarnation: incarnation,
      tokens,
      ...parts,
      ...state,
    };
    this.#departures.set(served.id, departure);
    served.sequence.copier = {
      get isWaiting() {
        return !departure.granted;
      },
      releasePages: (fromToken) => this.#halt(departure, fromToken),
    };
    served.sequence.awaitsDecodeMemory = first;
    if (first) this.ask(served.id);
  }

  /** One that decodes here stops, and all of it goes. */
  move(request: Request, served: S, leg: DecodeLeg): void {
    this.add(request, served, leg);
    this.ask(served.id);
    this.compute(served.id, nothingHeld);
  }

  /** Computed, and waiting for memory there. */
  *stranded(): Iterable<{ readonly id: RequestId; readonly to: InstanceIndex }> {
    for (const [id, { to, granted, held }] of this.#departures) if (!granted && held !== undefined) yield { id, to };
  }

  #isStranded(): boolean {
    for (const { granted, held } of this.#departures.values()) if (!granted && held !== undefined) return true;
    return false;
  }

  /** Its prefill starts. */
  ask(id: RequestId): void {
    const departure = this.#departures.get(id);
    if (departure === undefined || (departure.asked && departure.granted)) return;
    departure.asked = true;
    this.#reserve(departure);
  }

  /** Asks again where there was no answer, or not the last one. Returns how often. */
  askAgain(): number {
    let said = 0;
    for (const departure of this.#departures.values()) {
      const { asked, asks, granted, held, asking } = departure;
      if (!asked && asking > 0) this.#withdraw(departure, asking - 1);
      // A member who does not ask must not do so before all have begun.
      if (!asked || (held === undefined && (!asks || granted))) continue;
      this.#reserve(departure);
      said++;
    }
    return said;
  }

  #reserve(departure: Departure<Request, S>): void {
    const { request, served, senders, toIncarnation: incarnation } = departure;
    const tokens = departure.tokens > served.sequence.promptLength ? departure.tokens : undefined;
    const asking = departure.asking === 0 ? undefined : departure.asking;
    this.#send(departure, { kind: 'reserve', id: served.id, request, incarnation, tokens, senders, asking });
  }

  #withdraw(departure: Departure<Request, S>, asking: number): void {
    this.#send(departure, { kind: 'withdraw', id: departure.served.id, asking });
  }

  /** Of those that wait for blocks nobody keeps memory elsewhere while one that keeps blocks here waits for such. */
  yieldLandings(): void {
    if (this.#departures.size < 2 || !this.#isStranded()) return;
    for (const departure of this.#departures.values()) {
      const { granted, held, senders, served } = departure;
      if (granted && held === undefined && senders === undefined && served.sequence.state === 'waiting')
        this.#giveUp(departure);
    }
  }

  #giveUp(departure: Departure<Request, S>): void {
    const { served, to, first } = departure;
    this.#push({ kind: 'stopStream', id: served.id, to, of: 'handoff' });
    this.#withdraw(departure, departure.asking);
    departure.asked = false;
    departure.granted = false;
    departure.streamed = 0;
    departure.asking++;
    served.sequence.awaitsDecodeMemory = first;
    if (first) this.ask(served.id);
  }

  /** Which asking of a request that leaves is answered with memory that it has. */
  grantedAsking(id: RequestId): number | undefined {
    const departure = this.#departures.get(id);
    return departure?.granted === true ? departure.asking : undefined;
  }

  /** What a step is about to compute leaves layer by layer, as it is computed. */
  launched(step: StepNumber): void {
    for (const departure of this.#departures.values()) {
      // It had given its memory there up while it waited.
      if (!departure.asked && departure.served.sequence.planned > 0) this.ask(departure.served.id);
      this.#streamStep(departure, step);
    }
  }

  /** What was found here leaves before it moves to creditors, also of those that the step has no rows of. */
  catchUp(): void {
    for (const departure of this.#departures.values()) {
      const { granted, held, streamed, served } = departure;
      const { computed, planned, arriving } = served.sequence;
      if (!granted || !this.#layerWise || held !== undefined || planned > 0 || arriving !== undefined) continue;
      if (computed <= streamed) continue;
      this.#stream(departure, streamed, computed, undefined, undefined);
      departure.streamed = computed;
    }
  }

  #streamStep(departure: Departure<Request, S>, step: StepNumber): void {
    const { computed, planned } = departure.served.sequence;
    if (!departure.granted || !this.#layerWise || planned === 0) return;
    const from = departure.streamed;
    const to = Math.min(computed + planned, departure.tokens);
    // What the step waits for leaves as that comes.
    const here = departure.served.sequence.arriving === undefined ? computed : from;
    if (here > from) this.#stream(departure, from, here, undefined, undefined);
    if (to > here) this.#stream(departure, here, to, step, undefined);
    departure.streamed = to;
  }

  /** A step is over: what it was to compute and did not is computed again. */
  stepEnded(): void {
    for (const departure of this.#departures.values())
      if (departure.held === undefined) this.#halt(departure, departure.served.sequence.computed);
  }

  /** Tokens from this one on leave once they are computed again, or from where they lie now. */
  #halt(departure: Departure<Request, S>, fromToken: number): void {
    if (departure.streamed <= fromToken) return;
    departure.streamed = fromToken;
    this.#push({ kind: 'haltStream', id: departure.served.id, to: departure.to, from: fromToken });
  }

  /** The client hears this from the other side, before the first token: words of two instances take ways of their own. */
  tell(id: RequestId, event: GenerationEvent): void {
    this.#departures.get(id)?.told.push(event);
  }

  /** What was to be told there: the first token is the last. */
  toldOf(id: RequestId): readonly GenerationEvent[] {
    return this.#departures.get(id)?.told ?? nothingHeld;
  }

  /** The prompt is computed; the client will hear `held` from the other side, and what it was computed behind: that may not have been heard from here. */
  compute(id: RequestId, held: readonly GenerationEvent[]): void {
    const departure = this.#departures.get(id);
    if (departure === undefined) return;
    departure.held = held.length === 0 ? held : [startOf(departure.served), ...departure.told, ...held];
    if (departure.granted) this.#streamRest(departure, departure.held);
  }

  /** Memory was granted; `step` is in flight. False when it belongs to nobody here: a request that left meanwhile; the other side is told. A second grant does nothing. */
  grant(id: RequestId, from: InstanceIndex, asking: number, step: StepNumber | undefined): boolean {
    const departure = this.#departures.get(id);
    if (departure?.to !== from) {
      this.#push({ kind: 'send', to: from, message: { kind: 'release', id } });
      return false;
    }
    if (asking !== departure.asking) {
      this.#withdraw(departure, asking);
      return true;
    }
    if (departure.granted) return true;
    departure.granted = true;
    departure.served.sequence.awaitsDecodeMemory = false;
    if (departure.held !== undefined) this.#streamRest(departure, departure.held);
    else if (step !== undefined) this.#streamStep(departure, step);
    return true;
  }

  /** The other side has all, or will never: undefined when it is not known here. */
  settle(id: RequestId, from: InstanceIndex): S | undefined {
    const departure = this.#departures.get(id);
    if (departure?.to !== from) return undefined;
    this.#forget(departure);
    // What it says may be an answer to one that was doubled, or asked again: nobody wants what is still on the way.
    if (departure.granted) this.#push({ kind: 'stopStream', id, to: departure.to, of: 'handoff' });
    return departure.served;
  }

  /** The request ends here: its stream stops and the other side lets go. */
  drop(id: RequestId): void {
    const departure = this.#departures.get(id);
    if (departure === undefined) return;
    this.#forget(departure);
    if (departure.granted) this.#push({ kind: 'stopStream', id, to: departure.to, of: 'handoff' });
    if (departure.asked || departure.asking > 0) this.#send(departure, { kind: 'release', id });
  }

  #forget({ served: { id, sequence } }: Departure<Request, S>): void {
    this.#departures.delete(id);
    sequence.copier = undefined;
  }

  #streamRest(departure: Departure<Request, S>, held: readonly GenerationEvent[]): void {
    this.#stream(departure, departure.streamed, departure.tokens, undefined, held);
    departure.streamed = departure.tokens;
  }

  #stream(
    { served, to, range, tokens: promptTokens }: Departure<Request, S>,
    from: number,
    end: number,
    step: StepNumber | undefined,
    held: readonly GenerationEvent[] | undefined,
  ): void {
    const { id } = served;
    const { table } = served.sequence;
    this.#push({ kind: 'stream', id, to, from, tokens: end - from, promptTokens, table, step, held, range });
  }

  #send({ to }: Departure<Request, S>, message: PeerMessage<Request>): void {
    this.#push({ kind: 'send', to, message });
  }
}

/** What its client hears first of a prompt, once it is computed. */
export function startOf({ sequence }: RunningRequest): GenerationEvent {
  return { kind: 'started', cachedTokens: sequence.cachedTokens ?? 0 };
}
