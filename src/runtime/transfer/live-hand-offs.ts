// Carries out an instance's hand-offs: messages to peers of this process or others, pages through the native messenger.

import type { TokenInstance } from '../../core/instance/token-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceEvent, PeerMessage } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId, StepNumber } from '../../core/protocol/ids.ts';
import type { GenerationEvent, LinkSnapshot } from '../../core/protocol/ports.ts';
import {
  fillingPages,
  type PageShape,
  pageDescriptorsOf,
  type Stream,
} from '../../core/transfer/hand-off/page-descriptors.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { ActivationWire } from '../pipeline/activation-memory.ts';
import { InFlightPages } from './in-flight-pages.ts';
import { LinkCounters } from './link-counters.ts';
import { LivePrefixes, type PrefixWire } from './live-prefixes.ts';
import type { Messenger, MessengerCounts, ReceiveBufferHandle } from './messenger.ts';

/** What instances tell each other. */
export type PeerWire =
  | PrefixWire
  | ActivationWire
  /** With `reserved` and `fetch` comes where the prompt, or its prefix, is to land. */
  | { readonly kind: 'message'; readonly message: PeerMessage; readonly landing: ReceiveBufferHandle | undefined }
  /** What the client hears first once all has landed. */
  | { readonly kind: 'held'; readonly id: RequestId; readonly held: readonly GenerationEvent[] }
  /** It is there no more. */
  | { readonly kind: 'gone' };

/** What one instance sends of a prompt that is expected here. */
interface Part {
  readonly id: RequestId;
  readonly from: InstanceIndex;
  readonly handle: ReceiveBufferHandle;
  held: readonly GenerationEvent[] | undefined;
  complete: boolean;
}

/** A prompt that is expected here: where it lands, and who sends it. */
interface Landing {
  readonly pages: Int32Array;
  readonly parts: Map<InstanceIndex, Part>;
}

/** A prompt that leaves here. */
interface Departure {
  readonly id: RequestId;
  readonly landing: ReceiveBufferHandle;
  readonly to: InstanceIndex;
}

type PrefixEffect = 'expectPrefix' | 'closePrefix' | 'streamPrefix';
export type HandOffEffect = Extract<
  InstanceEffect,
  { kind: 'send' | 'stream' | 'stopStream' | 'haltStream' | 'openReceiveBuffer' | 'closeReceiveBuffer' | PrefixEffect }
>;
type Halt = Extract<HandOffEffect, { kind: 'haltStream' }>;

/** Layer, page, place. */
const parcelWords = 3;
/** Between two looks at what the messenger has given up. */
const lookUs = 1_000_000;

export interface LiveHandOffsOptions {
  /** Says it to another instance. */
  readonly post: (to: InstanceIndex, wire: PeerWire) => void;
  readonly messenger: Messenger;
  readonly shape: PageShape;
  readonly pageBytes: number;
}

export class LiveHandOffs {
  readonly #options: LiveHandOffsOptions;
  readonly #messenger: Messenger;
  /** Where prompts that leave here land, by receiver and request. */
  readonly #departures = new Map<string, Departure>();
  readonly #links: LinkCounters;
  readonly #unsent: InFlightPages;
  readonly #landings = new Map<RequestId, Landing>();
  readonly #byHandle = new Map<ReceiveBufferHandle, Part>();
  /** The step that has run, if its result has not been fed yet or is the last. */
  #ran: StepNumber | undefined;
  #lookedUs = 0;
  /** What is to be told once the gateway has been told of the prompts. */
  readonly #held: (readonly [InstanceIndex, PeerWire])[] = [];

  /** What is fetched from other instances, and by them. */
  readonly prefixes: LivePrefixes;

  constructor(options: LiveHandOffsOptions) {
    this.#options = options;
    this.#messenger = options.messenger;
    this.#unsent = new InFlightPages(options.messenger);
    this.#links = new LinkCounters(options.messenger);
    const { messenger, pageBytes, shape } = options;
    const layers = shape.groups[0]?.layers ?? 1;
    const sendWire = (to: InstanceIndex, wire: PrefixWire): void => this.sendWire(to, wire);
    this.prefixes = new LivePrefixes({ messenger, layers, pageBytes, links: this.#links, post: sendWire });
  }

  get counts(): MessengerCounts {
    return this.#messenger.counts;
  }

  /** To each instance that prompts or prefixes have gone to. */
  get links(): readonly LinkSnapshot[] {
    return this.#links.all;
  }

  /** A step has been run to its end, or was aborted. */
  onStepRan(step: StepNumber): void {
    this.#ran = step;
  }

  carryOut(effect: HandOffEffect, pools: TokenInstance['pools']): void {
    switch (effect.kind) {
      case 'send':
        this.send(effect.to, effect.message);
        break;
      case 'stream':
        this.stream(effect, pools);
        break;
      case 'stopStream':
        if (effect.of === 'prefix') this.prefixes.stop(effect.to, effect.id);
        else this.stop(effect.to, effect.id);
        break;
      case 'haltStream':
        this.halt(effect);
        break;
      case 'expectPrefix':
        this.prefixes.expect(effect);
        break;
      case 'closePrefix':
        this.prefixes.close(effect.id);
        break;
      case 'streamPrefix':
        this.prefixes.stream(effect);
        break;
      case 'openReceiveBuffer':
        this.open(effect.id, effect.pages);
        break;
      case 'closeReceiveBuffer':
        this.close(effect.id);
        break;
      default:
        assertNever(effect);
    }
  }

  send(to: InstanceIndex, message: PeerMessage): void {
    const landing = message.kind === 'reserved' ? this.#openTo(to, message.id) : undefined;
    if (message.kind === 'release' || message.kind === 'withdraw') this.#gone(to, message.id);
    if (message.kind === 'missing') this.prefixes.missing(to, message.id);
    const wanted = message.kind === 'fetch' ? this.prefixes.bufferOf(message.id) : undefined;
    this.sendWire(to, { kind: 'message', message, landing: landing?.handle ?? wanted });
  }

  open(id: RequestId, pages: Int32Array): void {
    this.#landings.set(id, { pages, parts: new Map() });
  }

  /** Each of those who send some of the layers has a landing of its own, over the same pages. */
  #openTo(from: InstanceIndex, id: RequestId): Part | undefined {
    const landing = this.#landings.get(id);
    const known = landing?.parts.get(from);
    if (landing === undefined || known !== undefined) return known;
    const part = { id, from, handle: this.#messenger.open(landing.pages), held: undefined, complete: false };
    landing.parts.set(from, part);
    this.#byHandle.set(part.handle, part);
    return part;
  }

  close(id: RequestId): void {
    const landing = this.#landings.get(id);
    if (landing === undefined) return;
    this.#landings.delete(id);
    for (const { handle } of landing.parts.values()) {
      this.#byHandle.delete(handle);
      this.#messenger.close(handle);
    }
  }

  stream(effect: Stream, pools: TokenInstance['pools']): void {
    const { id, to, step, held } = effect;
    const landing = this.#departures.get(keyOf(to, id))?.landing;
    if (landing === undefined) return;
    const end = effect.from + effect.tokens;
    const from = this.#unsent.resumeAt(landing, effect.from, end);
    if (from === end && held === undefined) return;
    const computing = step !== undefined && step !== this.#ran;
    const { shape, pageBytes } = this.#options;
    const part = { ...effect, from, tokens: end - from };
    const parcels = pageDescriptorsOf(part, shape, pools);
    const filling = fillingPages(part, shape, pools);
    this.#links.add(to, landing, keyOf(to, id), (parcels.length / parcelWords) * pageBytes);
    const more = from < effect.from ? { ...effect, from, tokens: effect.from - from } : undefined;
    const again = more && { parcels: pageDescriptorsOf(more, shape, pools), end: effect.from };
    this.#unsent.add(landing, parcels, end, again);
    this.#messenger.send(landing, computing ? this.#messenger.nextStep : 0, parcels, held !== undefined, filling);
    if (held !== undefined) this.#held.push([to, { kind: 'held', id, held }]);
  }

  /** Nothing is read for it any more once it returns; it goes on with the next `stream`. */
  halt({ id, to, from }: Halt): void {
    const landing = this.#departures.get(keyOf(to, id))?.landing;
    if (landing === undefined) return;
    this.#unsent.halt(landing, from);
    this.#links.settle(keyOf(to, id));
  }

  /** Nothing is read for it any more once it returns, or ever again. */
  stop(to: InstanceIndex, id: RequestId): void {
    this.#gone(to, id);
  }

  /** May a prompt that leaves here still be read from one of these pages? */
  isRead(pages: Int32Array): boolean {
    return this.#unsent.isRead(pages);
  }

  #gone(to: InstanceIndex, id: RequestId): void {
    const landing = this.#departures.get(keyOf(to, id))?.landing;
    // Also where all is known to be there: what is not acknowledged yet would be sent again over the next connection.
    if (landing !== undefined) this.#unsent.stop(landing);
    this.#departures.delete(keyOf(to, id));
    this.#links.settle(keyOf(to, id));
  }

  /** The events that a peer's message is for the machine. */
  onMessage(from: InstanceIndex, wire: Exclude<PeerWire, ActivationWire>): readonly InstanceEvent[] {
    if (wire.kind === 'gone') return this.prefixes.onPeerLost(from);
    const event = this.#hearOne(from, wire);
    return event === undefined ? [] : [event];
  }

  #hearOne(from: InstanceIndex, wire: Exclude<PeerWire, { kind: 'gone' } | ActivationWire>): InstanceEvent | undefined {
    if (wire.kind === 'held') {
      const part = this.#landings.get(wire.id)?.parts.get(from);
      if (part === undefined) return undefined;
      part.held = wire.held;
      return landedEvent(part);
    }
    if (wire.kind !== 'message') return this.prefixes.onMessage(from, wire);
    const { message, landing } = wire;
    if (message.kind === 'missing') this.prefixes.onMissing(from, message.id);
    if (message.kind === 'fetch') {
      if (landing !== undefined) this.prefixes.onFetch(from, message.id, landing);
    } else if (landing !== undefined)
      this.#departures.set(keyOf(from, message.id), { id: message.id, landing, to: from });
    if (message.kind === 'received' || message.kind === 'declined') this.#gone(from, message.id);
    return { kind: 'peer', from, message };
  }

  /** When to ask for `news` again, if nothing comes before. */
  get nextUs(): number {
    return this.#departures.size === 0 && !this.prefixes.isSending ? Number.POSITIVE_INFINITY : this.#lookedUs + lookUs;
  }

  /** Events of prompts that are all here, and of those that cannot leave. */
  poll(nowUs: number): readonly InstanceEvent[] {
    const landed = this.#landings.size === 0 && !this.prefixes.isExpecting ? [] : this.#takeLanded();
    if (nowUs < this.nextUs) return landed;
    this.#lookedUs = nowUs;
    return [...landed, ...this.#takeGivenUp()];
  }

  #takeLanded(): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const handle of this.#messenger.received()) {
      const part = this.#byHandle.get(handle);
      if (part !== undefined) part.complete = true;
      const event = part === undefined ? this.prefixes.onReceived(handle) : landedEvent(part);
      if (event !== undefined) events.push(event);
    }
    return events;
  }

  #takeGivenUp(): readonly InstanceEvent[] {
    const givenUp = this.#unsent.takeUnreachable();
    if (givenUp.size === 0) return [];
    const events: InstanceEvent[] = [];
    for (const { id, landing, to } of this.#departures.values())
      if (givenUp.has(landing)) events.push({ kind: 'streamBroken', id, to });
    return [...events, ...this.prefixes.onUnreachable(givenUp)];
  }

  /** Says it to another instance. */
  sendWire(to: InstanceIndex, wire: PeerWire): void {
    this.#options.post(to, wire);
  }

  /** Prompts that are computed go on elsewhere: to be called when the gateway has heard what was computed, or it hears of their ends first. */
  sendFirstEvents(): void {
    for (const [to, wire] of this.#held.splice(0)) this.sendWire(to, wire);
  }
}

function keyOf(to: InstanceIndex, id: RequestId): string {
  return `${to} ${id}`;
}

/** Pages and what comes with them take ways of their own: the later of the two says that all is here. */
function landedEvent({ id, from, held, complete }: Part): InstanceEvent | undefined {
  return complete && held !== undefined ? { kind: 'promptReceived', from, id, held } : undefined;
}
