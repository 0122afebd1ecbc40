// Carries out an instance's transfers of prompts: messages to peers of this process or others, and pages through the native messenger.

import type { TokenInstance } from '../../core/instance/token-instance.ts';
import { blockPages } from '../../core/kvcache/layer-groups.ts';
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

/** Messages between instances. */
export type PeerWire =
  | PrefixWire
  | ActivationWire
  /** `reserved` and `fetch` come with the receive buffer of the prompt or prefix. */
  | { readonly kind: 'message'; readonly message: PeerMessage; readonly receiveBuffer: ReceiveBufferHandle | undefined }
  /** The first events for the client, to be emitted once the prompt has been received. */
  | { readonly kind: 'firstEvents'; readonly id: RequestId; readonly events: readonly GenerationEvent[] }
  /** The sender is lost, and may return under its index. */
  | { readonly kind: 'gone' }
  /** The sender is lost, and its index is never used again. */
  | { readonly kind: 'ended' };

/** One sender's part of an expected prompt. */
interface Part {
  readonly id: RequestId;
  readonly from: InstanceIndex;
  readonly handle: ReceiveBufferHandle;
  firstEvents: readonly GenerationEvent[] | undefined;
  complete: boolean;
}

/** An expected prompt: its pages, and its senders. */
interface ExpectedPrompt {
  readonly pages: Int32Array;
  readonly parts: Map<InstanceIndex, Part>;
}

/** A prompt that is sent. */
interface OutgoingStream {
  readonly id: RequestId;
  readonly receiveBuffer: ReceiveBufferHandle;
  readonly to: InstanceIndex;
}

type PrefixEffect = 'expectPrefix' | 'closePrefix' | 'streamPrefix';
export type HandOffEffect = Extract<
  InstanceEffect,
  { kind: 'send' | 'stream' | 'stopStream' | 'haltStream' | 'openReceiveBuffer' | 'closeReceiveBuffer' | PrefixEffect }
>;
type Halt = Extract<HandOffEffect, { kind: 'haltStream' }>;

/** Words of a page descriptor: layer, page, slot. */
const descriptorWords = 3;
/** Interval between checks for unreachable receive buffers. */
const checkUs = 1_000_000;

export interface LiveHandOffsOptions {
  /** Sends a message to another instance. */
  post(to: InstanceIndex, wire: PeerWire): void;
  readonly messenger: Messenger;
  readonly shape: PageShape;
  readonly pageBytes: number;
}

export class LiveHandOffs {
  readonly #options: LiveHandOffsOptions;
  readonly #messenger: Messenger;
  /** By receiver and request. */
  readonly #outgoing = new Map<string, OutgoingStream>();
  readonly #links: LinkCounters;
  readonly #inFlight: InFlightPages;
  readonly #expected = new Map<RequestId, ExpectedPrompt>();
  readonly #byHandle = new Map<ReceiveBufferHandle, Part>();
  /** The step that ran last. */
  #ran: StepNumber | undefined;
  #checkedUs = 0;
  /** Messages with first events, sent after the outputs to the gateway. */
  readonly #firstEvents: (readonly [InstanceIndex, PeerWire])[] = [];

  /** Prefixes fetched from other instances, and by them. */
  readonly prefixes: LivePrefixes;

  constructor(options: LiveHandOffsOptions) {
    this.#options = options;
    this.#messenger = options.messenger;
    this.#inFlight = new InFlightPages(options.messenger);
    this.#links = new LinkCounters(options.messenger);
    const { messenger, pageBytes, shape } = options;
    const layers = blockPages(shape.groups);
    const sendWire = (to: InstanceIndex, wire: PrefixWire): void => this.sendWire(to, wire);
    this.prefixes = new LivePrefixes({ messenger, layers, pageBytes, links: this.#links, post: sendWire });
  }

  /** Address at which pages of other processes are received, as HOST:PORT. */
  get address(): string | undefined {
    return this.#messenger.address;
  }

  get counts(): MessengerCounts {
    return this.#messenger.counts;
  }

  /** Links to all instances that prompts or prefixes were sent to. */
  get links(): readonly LinkSnapshot[] {
    return this.#links.all;
  }

  /** A step has completed or was aborted. */
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
    const receiveBuffer = message.kind === 'reserved' ? this.#openTo(to, message.id) : undefined;
    if (message.kind === 'release' || message.kind === 'withdraw') this.#endOutgoing(to, message.id);
    if (message.kind === 'prefixMissing') this.prefixes.missing(to, message.id);
    const prefixBuffer = message.kind === 'fetch' ? this.prefixes.bufferOf(message.id) : undefined;
    this.sendWire(to, { kind: 'message', message, receiveBuffer: receiveBuffer?.handle ?? prefixBuffer });
  }

  open(id: RequestId, pages: Int32Array): void {
    this.#expected.set(id, { pages, parts: new Map() });
  }

  /** Each sender of some of the layers has a receive buffer of its own over the same pages. */
  #openTo(from: InstanceIndex, id: RequestId): Part | undefined {
    const prompt = this.#expected.get(id);
    const known = prompt?.parts.get(from);
    if (prompt === undefined || known !== undefined) return known;
    const part = { id, from, handle: this.#messenger.open(prompt.pages), firstEvents: undefined, complete: false };
    prompt.parts.set(from, part);
    this.#byHandle.set(part.handle, part);
    return part;
  }

  close(id: RequestId): void {
    const prompt = this.#expected.get(id);
    if (prompt === undefined) return;
    this.#expected.delete(id);
    for (const { handle } of prompt.parts.values()) {
      this.#byHandle.delete(handle);
      this.#messenger.close(handle);
    }
  }

  stream(effect: Stream, pools: TokenInstance['pools']): void {
    const { id, to, step, firstEvents } = effect;
    const receiveBuffer = this.#outgoing.get(keyOf(to, id))?.receiveBuffer;
    if (receiveBuffer === undefined) return;
    const end = effect.from + effect.tokens;
    const from = this.#inFlight.resumeAt(receiveBuffer, effect.from, end);
    if (from === end && firstEvents === undefined) return;
    const computing = step !== undefined && step !== this.#ran;
    const { shape, pageBytes } = this.#options;
    const part = { ...effect, from, tokens: end - from };
    const descriptors = pageDescriptorsOf(part, shape, pools);
    const filling = fillingPages(part, shape, pools);
    this.#links.add(to, receiveBuffer, keyOf(to, id), (descriptors.length / descriptorWords) * pageBytes);
    const resent = from < effect.from ? { ...effect, from, tokens: effect.from - from } : undefined;
    const again = resent && { descriptors: pageDescriptorsOf(resent, shape, pools), end: effect.from };
    this.#inFlight.add(receiveBuffer, descriptors, end, again);
    this.#messenger.send(
      receiveBuffer,
      computing ? this.#messenger.nextPoolStep : 0,
      descriptors,
      firstEvents !== undefined,
      filling,
    );
    if (firstEvents !== undefined) this.#firstEvents.push([to, { kind: 'firstEvents', id, events: firstEvents }]);
  }

  /** When it returns, no page is read for the prompt; the next `stream` resumes it. */
  halt({ id, to, from }: Halt): void {
    const receiveBuffer = this.#outgoing.get(keyOf(to, id))?.receiveBuffer;
    if (receiveBuffer === undefined) return;
    this.#inFlight.halt(receiveBuffer, from);
    this.#links.streamEnded(keyOf(to, id));
  }

  /** When it returns, no page is read for the prompt, now or later. */
  stop(to: InstanceIndex, id: RequestId): void {
    this.#endOutgoing(to, id);
  }

  /** True while a prompt may still be sent from one of these pages. */
  isRead(pages: Int32Array): boolean {
    return this.#inFlight.isRead(pages);
  }

  #endOutgoing(to: InstanceIndex, id: RequestId): void {
    const receiveBuffer = this.#outgoing.get(keyOf(to, id))?.receiveBuffer;
    // Also if all has arrived: unacknowledged pages would be sent again over the next connection.
    if (receiveBuffer !== undefined) this.#inFlight.stop(receiveBuffer);
    this.#outgoing.delete(keyOf(to, id));
    this.#links.streamEnded(keyOf(to, id));
  }

  /** Handles a message of a peer; returns the events for the state machine. */
  onMessage(from: InstanceIndex, wire: Exclude<PeerWire, ActivationWire>): readonly InstanceEvent[] {
    if (wire.kind === 'ended') this.#links.forget(from);
    if (wire.kind === 'gone' || wire.kind === 'ended') return this.prefixes.onPeerLost(from);
    const event = this.#eventOf(from, wire);
    return event === undefined ? [] : [event];
  }

  #eventOf(
    from: InstanceIndex,
    wire: Exclude<PeerWire, { kind: 'gone' | 'ended' } | ActivationWire>,
  ): InstanceEvent | undefined {
    if (wire.kind === 'firstEvents') {
      const part = this.#expected.get(wire.id)?.parts.get(from);
      if (part === undefined) return undefined;
      part.firstEvents = wire.events;
      return promptReceivedEvent(part);
    }
    if (wire.kind !== 'message') return this.prefixes.onMessage(from, wire);
    const { message, receiveBuffer } = wire;
    if (message.kind === 'prefixMissing') this.prefixes.onMissing(from, message.id);
    if (message.kind === 'fetch') {
      if (receiveBuffer !== undefined) this.prefixes.onFetch(from, message.id, receiveBuffer);
    } else if (receiveBuffer !== undefined)
      this.#outgoing.set(keyOf(from, message.id), { id: message.id, receiveBuffer, to: from });
    if (message.kind === 'received' || message.kind === 'declined') this.#endOutgoing(from, message.id);
    return { kind: 'peer', from, message };
  }

  /** Time of the next `poll`, if nothing happens before. */
  get nextUs(): number {
    return this.#outgoing.size === 0 && !this.prefixes.isSending ? Number.POSITIVE_INFINITY : this.#checkedUs + checkUs;
  }

  /** Events of received prompts and unreachable receivers since the last call. */
  poll(nowUs: number): readonly InstanceEvent[] {
    const received = this.#expected.size === 0 && !this.prefixes.isExpecting ? [] : this.#takeReceived();
    if (nowUs < this.nextUs) return received;
    this.#checkedUs = nowUs;
    return [...received, ...this.#takeUnreachable()];
  }

  #takeReceived(): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const handle of this.#messenger.received()) {
      const part = this.#byHandle.get(handle);
      if (part !== undefined) part.complete = true;
      const event = part === undefined ? this.prefixes.onReceived(handle) : promptReceivedEvent(part);
      if (event !== undefined) events.push(event);
    }
    return events;
  }

  #takeUnreachable(): readonly InstanceEvent[] {
    const unreachable = this.#inFlight.takeUnreachable();
    if (unreachable.size === 0) return [];
    const events: InstanceEvent[] = [];
    for (const { id, receiveBuffer, to } of this.#outgoing.values())
      if (unreachable.has(receiveBuffer)) events.push({ kind: 'streamBroken', id, to });
    return [...events, ...this.prefixes.onUnreachable(unreachable)];
  }

  /** Sends a message to another instance. */
  sendWire(to: InstanceIndex, wire: PeerWire): void {
    this.#options.post(to, wire);
  }

  /** To be called after the outputs were sent to the gateway: otherwise it could receive the end of a request first. */
  sendFirstEvents(): void {
    for (const [to, wire] of this.#firstEvents.splice(0)) this.sendWire(to, wire);
  }
}

function keyOf(to: InstanceIndex, id: RequestId): string {
  return `${to} ${id}`;
}

/** Pages and first events travel separately; the later of the two completes the prompt. */
function promptReceivedEvent({ id, from, firstEvents, complete }: Part): InstanceEvent | undefined {
  return complete && firstEvents !== undefined ? { kind: 'promptReceived', from, id, firstEvents } : undefined;
}
