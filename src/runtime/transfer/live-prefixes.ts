// Prefixes that instances fetch from one another: pages through the messenger, straight from where the blocks lie to where they are wanted.
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import { pageTokens } from '../../util/step.ts';
import type { LinkCounters } from './link-counters.ts';
import type { Messenger, ReceiveBufferHandle } from './messenger.ts';

type Expect = Extract<InstanceEffect, { kind: 'expectPrefix' }>;
type StreamPrefix = Extract<InstanceEffect, { kind: 'streamPrefix' }>;

/** What the two ends of a fetch tell each other besides what the machines say. */
export type PrefixWire =
  /** To the one that asked: so far the prefix comes. */
  | { readonly kind: 'prefix'; readonly id: RequestId; readonly blocks: number }
  /** To the one that sends: all of it is here. */
  | { readonly kind: 'prefixHere'; readonly id: RequestId };

interface Expected {
  readonly handle: ReceiveBufferHandle;
  readonly from: InstanceIndex;
  /** As the sender says. */
  blocks: number | undefined;
  /** The first block that lands, where steps may run meanwhile. */
  readonly ahead: number | undefined;
  complete: boolean;
}

interface Sending {
  readonly id: RequestId;
  readonly to: InstanceIndex;
  readonly landing: ReceiveBufferHandle;
}

interface LivePrefixesOptions {
  readonly messenger: Messenger;
  /** Pages of a block, in the order of computation. */
  readonly layers: number;
  readonly pageBytes: number;
  readonly links: LinkCounters;
  readonly post: (to: InstanceIndex, wire: PrefixWire) => void;
}

export class LivePrefixes {
  readonly #messenger: Messenger;
  readonly #post: (to: InstanceIndex, wire: PrefixWire) => void;
  /** Of the model. */
  readonly #layers: number;
  readonly #pageBytes: number;
  readonly #links: LinkCounters;
  readonly #expected = new Map<RequestId, Expected>();
  readonly #byHandle = new Map<ReceiveBufferHandle, RequestId>();
  /** What others wait for, by receiver and request. */
  readonly #sending = new Map<string, Sending>();

  constructor({ messenger, layers, pageBytes, links, post }: LivePrefixesOptions) {
    this.#messenger = messenger;
    this.#layers = layers;
    this.#pageBytes = pageBytes;
    this.#links = links;
    this.#post = post;
  }

  get isExpecting(): boolean {
    return this.#expected.size > 0;
  }

  get isSending(): boolean {
    return this.#sending.size > 0;
  }

  expect({ id, from, pages, ahead }: Expect): void {
    const handle = this.#messenger.open(pages, ahead === undefined ? undefined : this.#layers);
    this.#expected.set(id, { handle, from, blocks: undefined, ahead, complete: false });
    this.#byHandle.set(handle, id);
  }

  /** Where the prefix that the request waits for lands. */
  bufferOf(id: RequestId): ReceiveBufferHandle | undefined {
    return this.#expected.get(id)?.handle;
  }

  /** What a step waits for that runs behind what lands (`Step.arriving`); undefined: it does not come. */
  arrivalsOf(id: RequestId): number | undefined {
    const { handle, ahead, blocks } = this.#expected.get(id) ?? {};
    if (handle === undefined || ahead === undefined || blocks === undefined) return undefined;
    return this.#messenger.arrivals(handle, Math.max(0, blocks - ahead));
  }

  /** It has nothing of that; an answer that comes late may be to what was asked for before. */
  onMissing(from: InstanceIndex, id: RequestId): void {
    if (this.#expected.get(id)?.from === from) this.close(id);
  }

  /** Nothing is written there any more once it returns. */
  close(id: RequestId): void {
    const expected = this.#expected.get(id);
    if (expected === undefined) return;
    this.#expected.delete(id);
    this.#byHandle.delete(expected.handle);
    this.#messenger.close(expected.handle);
  }

  /** Somebody asks for a prefix, to be sent there. */
  onFetch(to: InstanceIndex, id: RequestId, landing: ReceiveBufferHandle): void {
    this.#sending.set(keyOf(to, id), { id, to, landing });
  }

  /** Nothing, where nobody waits any more: the machine hears of that by itself. */
  stream({ id, to, tokens, blocks, pages }: StreamPrefix): void {
    const sending = this.#sending.get(keyOf(to, id));
    if (sending === undefined || pages === undefined) return;
    const parcels = new Int32Array(3 * pages.length);
    // Layer by layer: the other side may compute with the first ones while the others come.
    const count = tokens / pageTokens;
    const layers = pages.length / count;
    for (let i = 0; i < pages.length; i++) {
      const layer = Math.floor(i / count);
      const place = (i % count) * layers + layer;
      parcels.set([layer, pages[place] ?? 0, place], 3 * i);
    }
    this.#links.add(to, sending.landing, keyOf(to, id), pages.length * this.#pageBytes);
    this.#messenger.send(sending.landing, 0, parcels, true);
    this.#post(to, { kind: 'prefix', id, blocks });
  }

  /** Once it returns nothing is read for it any more, also where all is there: what is not acknowledged yet would be sent again over the next connection. False when nothing was sent. */
  stop(to: InstanceIndex, id: RequestId): boolean {
    const sending = this.#sending.get(keyOf(to, id));
    this.#links.settle(keyOf(to, id));
    if (sending === undefined) return false;
    this.#sending.delete(keyOf(to, id));
    this.#messenger.stop(sending.landing);
    return true;
  }

  /** There is nothing to send. */
  missing(to: InstanceIndex, id: RequestId): void {
    this.stop(to, id);
  }

  onMessage(from: InstanceIndex, wire: PrefixWire): InstanceEvent | undefined {
    if (wire.kind === 'prefixHere') {
      return this.stop(from, wire.id) ? { kind: 'prefixSent', id: wire.id, to: from } : undefined;
    }
    const expected = this.#expected.get(wire.id);
    if (expected === undefined || expected.from !== from) return undefined;
    expected.blocks = wire.blocks;
    const loaded = this.#loaded(wire.id, expected);
    if (loaded !== undefined || expected.ahead === undefined) return loaded;
    return { kind: 'arriving', id: wire.id, source: from, to: wire.blocks };
  }

  /** A landing of the messenger is complete: what to tell the machine, if it is a prefix and all is known of it. */
  onReceived(handle: ReceiveBufferHandle): InstanceEvent | undefined {
    const id = this.#byHandle.get(handle);
    const expected = id === undefined ? undefined : this.#expected.get(id);
    if (id === undefined || expected === undefined) return undefined;
    expected.complete = true;
    return this.#loaded(id, expected);
  }

  /** Pages and what is said of them take ways of their own. */
  #loaded(id: RequestId, { from, blocks, complete }: Expected): InstanceEvent | undefined {
    if (!complete || blocks === undefined) return undefined;
    this.close(id);
    this.#post(from, { kind: 'prefixHere', id });
    return { kind: 'loaded', id, source: from, to: blocks };
  }

  /** The messenger has given these up: they will never have left. */
  onUnreachable(landings: ReadonlySet<ReceiveBufferHandle>): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const { id, to, landing } of [...this.#sending.values()]) {
      if (!landings.has(landing)) continue;
      this.stop(to, id);
      events.push({ kind: 'prefixSent', id, to });
    }
    return events;
  }

  /** The instance is gone: what it was to send will not come, and it waits for nothing. */
  onPeerLost(peer: InstanceIndex): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const { id, to } of [...this.#sending.values()]) {
      if (to !== peer) continue;
      this.stop(to, id);
      // Not `prefixSent`: what is still being read of SSD for it is not wanted either.
      events.push({ kind: 'peer', from: peer, message: { kind: 'unwanted', id } });
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
