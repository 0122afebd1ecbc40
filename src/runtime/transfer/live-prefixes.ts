// Carries out prefix fetches between instances: pages go through the messenger from the source's blocks to the receiver's.
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import { pageTokens } from '../../util/step.ts';
import type { LinkCounters } from './link-counters.ts';
import type { Messenger, ReceiveBufferHandle } from './messenger.ts';

type Expect = Extract<InstanceEffect, { kind: 'expectPrefix' }>;
type StreamPrefix = Extract<InstanceEffect, { kind: 'streamPrefix' }>;

/** Messages of the two drivers of a fetch, besides those of the state machines. */
export type PrefixWire =
  /** To the receiver: number of blocks that are sent. */
  | { readonly kind: 'prefix'; readonly id: RequestId; readonly blocks: number }
  /** To the source: the prefix has been received. */
  | { readonly kind: 'prefixReceived'; readonly id: RequestId };

interface Expected {
  readonly handle: ReceiveBufferHandle;
  readonly from: InstanceIndex;
  /** As the source reports. */
  blocks: number | undefined;
  /** The first received block, if steps may run meanwhile. */
  readonly ahead: number | undefined;
  complete: boolean;
}

interface Sending {
  readonly id: RequestId;
  readonly to: InstanceIndex;
  readonly receiveBuffer: ReceiveBufferHandle;
}

interface LivePrefixesOptions {
  readonly messenger: Messenger;
  /** Layers of the model: pages of a block. */
  readonly layers: number;
  readonly pageBytes: number;
  readonly links: LinkCounters;
  post(to: InstanceIndex, wire: PrefixWire): void;
}

export class LivePrefixes {
  readonly #options: LivePrefixesOptions;
  readonly #messenger: Messenger;
  readonly #expected = new Map<RequestId, Expected>();
  readonly #byHandle = new Map<ReceiveBufferHandle, RequestId>();
  /** Prefixes that others fetch, by receiver and request. */
  readonly #sending = new Map<string, Sending>();

  constructor(options: LivePrefixesOptions) {
    this.#options = options;
    this.#messenger = options.messenger;
  }

  get isExpecting(): boolean {
    return this.#expected.size > 0;
  }

  get isSending(): boolean {
    return this.#sending.size > 0;
  }

  expect({ id, from, pages, ahead }: Expect): void {
    const handle = this.#messenger.open(pages, ahead === undefined ? undefined : this.#options.layers);
    this.#expected.set(id, { handle, from, blocks: undefined, ahead, complete: false });
    this.#byHandle.set(handle, id);
  }

  /** The receive buffer of the prefix that the request waits for. */
  bufferOf(id: RequestId): ReceiveBufferHandle | undefined {
    return this.#expected.get(id)?.handle;
  }

  /** The arrivals that a step behind the prefix waits for (`Step.arriving`); undefined if it will not come. */
  arrivalsOf(id: RequestId): number | undefined {
    const { handle, ahead, blocks } = this.#expected.get(id) ?? {};
    if (handle === undefined || ahead === undefined || blocks === undefined) return undefined;
    return this.#messenger.arrivals(handle, Math.max(0, blocks - ahead));
  }

  /** The source lacks the prefix. A late reply of an earlier source has no effect. */
  onMissing(from: InstanceIndex, id: RequestId): void {
    if (this.#expected.get(id)?.from === from) this.close(id);
  }

  /** When it returns, nothing more is written to the pages. */
  close(id: RequestId): void {
    const expected = this.#expected.get(id);
    if (expected === undefined) return;
    this.#expected.delete(id);
    this.#byHandle.delete(expected.handle);
    this.#messenger.close(expected.handle);
  }

  /** Another instance fetches a prefix into that receive buffer. */
  onFetch(to: InstanceIndex, id: RequestId, receiveBuffer: ReceiveBufferHandle): void {
    this.#sending.set(keyOf(to, id), { id, to, receiveBuffer });
  }

  /** Sends the prefix, unless the fetch was cancelled: a message of its own reports that. */
  stream({ id, to, tokens, blocks, pages }: StreamPrefix): void {
    const sending = this.#sending.get(keyOf(to, id));
    if (sending === undefined || pages === undefined) return;
    const descriptors = new Int32Array(3 * pages.length);
    // Layer by layer: the receiver may compute with the first layers while it receives the others.
    const count = tokens / pageTokens;
    const layers = pages.length / count;
    for (let i = 0; i < pages.length; i++) {
      const layer = Math.floor(i / count);
      const slot = (i % count) * layers + layer;
      descriptors.set([layer, pages[slot] ?? 0, slot], 3 * i);
    }
    this.#options.links.add(to, sending.receiveBuffer, keyOf(to, id), pages.length * this.#options.pageBytes);
    this.#messenger.send(sending.receiveBuffer, 0, descriptors, true);
    this.#options.post(to, { kind: 'prefix', id, blocks });
  }

  /**
   * When it returns, no page is read for the prefix: unacknowledged pages would otherwise be sent again over the next connection. Returns whether
   * the prefix was being sent.
   */
  stop(to: InstanceIndex, id: RequestId): boolean {
    const sending = this.#sending.get(keyOf(to, id));
    this.#options.links.streamEnded(keyOf(to, id));
    if (sending === undefined) return false;
    this.#sending.delete(keyOf(to, id));
    this.#messenger.stop(sending.receiveBuffer);
    return true;
  }

  /** The prefix is not here. */
  missing(to: InstanceIndex, id: RequestId): void {
    this.stop(to, id);
  }

  onMessage(from: InstanceIndex, wire: PrefixWire): InstanceEvent | undefined {
    if (wire.kind === 'prefixReceived') {
      return this.stop(from, wire.id) ? { kind: 'prefixSent', id: wire.id, to: from } : undefined;
    }
    const expected = this.#expected.get(wire.id);
    if (expected === undefined || expected.from !== from) return undefined;
    expected.blocks = wire.blocks;
    const loaded = this.#loaded(wire.id, expected);
    if (loaded !== undefined || expected.ahead === undefined) return loaded;
    return { kind: 'arriving', id: wire.id, source: from, to: wire.blocks };
  }

  /** A receive buffer is complete: returns the event for the state machine, if a prefix is. */
  onReceived(handle: ReceiveBufferHandle): InstanceEvent | undefined {
    const id = this.#byHandle.get(handle);
    const expected = id === undefined ? undefined : this.#expected.get(id);
    if (id === undefined || expected === undefined) return undefined;
    expected.complete = true;
    return this.#loaded(id, expected);
  }

  /** Pages and messages travel separately. */
  #loaded(id: RequestId, { from, blocks, complete }: Expected): InstanceEvent | undefined {
    if (!complete || blocks === undefined) return undefined;
    this.close(id);
    this.#options.post(from, { kind: 'prefixReceived', id });
    return { kind: 'loaded', id, source: from, to: blocks };
  }

  /** These receive buffers are unreachable: the prefixes will never be sent. */
  onUnreachable(receiveBuffers: ReadonlySet<ReceiveBufferHandle>): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const { id, to, receiveBuffer } of [...this.#sending.values()]) {
      if (!receiveBuffers.has(receiveBuffer)) continue;
      this.stop(to, id);
      events.push({ kind: 'prefixSent', id, to });
    }
    return events;
  }

  /** A peer is lost: its prefixes will not come, and it needs none. */
  onPeerLost(peer: InstanceIndex): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const { id, to } of [...this.#sending.values()]) {
      if (to !== peer) continue;
      this.stop(to, id);
      // Not `prefixSent`: reads from SSD for it must stop too.
      events.push({ kind: 'peer', from: peer, message: { kind: 'cancelPrefix', id } });
    }
    for (const [id, { from }] of [...this.#expected]) {
      if (from !== peer) continue;
      this.close(id);
      events.push({ kind: 'loaded', id, source: peer, to: 0 });
    }
    return events;
  }
}

function keyOf(to: InstanceIndex, id: RequestId): string {
  return `${to} ${id}`;
}
