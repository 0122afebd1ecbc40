// Prefix fetch: cached prefixes are loaded from other instances or SSD, sent to other instances, and kept by stores (Mooncake, section 6).

import { assertNever } from '../../../util/assert-never.ts';
import { digestWords } from '../../../util/blake2s.ts';
import type { PrefixReceiveBuffer } from '../../kvcache/prefix-transfer.ts';
import type { InstanceEvent, LoadSource, PrefixMessage, Store } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId, SlotId } from '../../protocol/ids.ts';
import type { BlockChain, SsdBlock } from '../../protocol/kv-events.ts';
import { isPrefixMessage } from '../../protocol/peer-messages.ts';
import type { InstanceSnapshot, StoreSnapshot } from '../../protocol/ports.ts';
import {
  type Continuation,
  type Handled,
  type Identified,
  InstanceComponent,
  type InstanceContext,
  type LeaveReason,
  type StepDraft,
} from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import { OfferedPrefixes } from './offered-prefixes.ts';
import { type LoadPart, type PendingBlocks, PrefixLoads } from './prefix-loads.ts';
import { PrefixOffers } from './prefix-offers.ts';
import { PrefixSends } from './prefix-sends.ts';
import { PrefixStagings } from './prefix-stagings.ts';

type TransferEvent = Extract<InstanceEvent, { kind: 'arriving' | 'loaded' | 'prefixSent' | 'stores' }>;

type PeerPart = LoadPart & { readonly source: InstanceIndex };

export interface PrefixFetchConfig {
  /** Requests may start while their prefixes arrive layer by layer: steps wait for the blocks that `pendingBlocks` lists. */
  readonly aheadOfUse?: boolean | undefined;
  /** Predicted time to read so many blocks of SSD. Undefined: no time. */
  readonly ssdReadUs?: ((blocks: number) => number) | undefined;
  /** Stores that get offers of computed prefixes, until a `stores` event names others. */
  readonly stores?: readonly Store[] | undefined;
  /** The instance is a store: it fetches the prefixes that other instances offer. */
  readonly isStore?: boolean | undefined;
}

export class PrefixFetches<Request extends Identified, S extends RunningRequest> extends InstanceComponent<Request, S> {
  readonly loads: PrefixLoads<S>;
  readonly sends: PrefixSends;
  readonly offers: PrefixOffers;
  readonly offered: OfferedPrefixes;
  readonly #context: InstanceContext<Request, S>;
  readonly #config: PrefixFetchConfig;
  readonly #stagings: PrefixStagings;
  /** Reads of SSD in progress, by request. */
  readonly #ssdReads = new Map<RequestId, readonly SsdBlock[]>();

  constructor(context: InstanceContext<Request, S>, config: PrefixFetchConfig) {
    super();
    this.#context = context;
    this.#config = config;
    this.sends = new PrefixSends(context);
    this.offers = new PrefixOffers(context, this.sends, config.stores ?? []);
    this.#stagings = new PrefixStagings(context, this.sends);
    this.loads = new PrefixLoads(context, this, config.aheadOfUse === true);
    this.offered = new OfferedPrefixes(context, this);
  }

  get #hasContents(): boolean {
    return this.#context.config.contents !== undefined;
  }

  get #lower() {
    return this.#context.kvCache.lower;
  }

  override handle(event: InstanceEvent<Request, unknown>): Handled {
    if (event.kind === 'peer') {
      if (!isPrefixMessage(event.message)) return undefined;
      this.#ignoreIf(event, this.#receive(event.from, event.message));
      return 'cacheOnly';
    }
    if (event.kind !== 'arriving' && event.kind !== 'loaded' && event.kind !== 'prefixSent' && event.kind !== 'stores')
      return undefined;
    this.#ignoreIf(event, this.#handleTransfer(event));
    return event.kind === 'stores' ? 'replan' : 'cacheOnly';
  }

  #ignoreIf(event: InstanceEvent<Request, unknown>, why: string | undefined): void {
    if (why !== undefined) this.#context.ignore(event, why);
  }

  /** Returns why the event changed nothing. */
  #handleTransfer(event: TransferEvent): string | undefined {
    switch (event.kind) {
      case 'loaded':
        if (event.source === 'ssd' && this.#stagings.read(event.id, event.to, event.bad)) return undefined;
        if (event.source === 'ssd') this.#endSsdRead(event.id, event.bad);
        return this.#arrive(event.id, event.source, event.to);
      case 'arriving':
        return this.loads.announce(event.id, event.source, event.to)
          ? undefined
          : `request ${event.id} does not wait for it`;
      case 'prefixSent':
        this.offers.fetchEnded(this.#context.nowUs, event.to, event.id, this.sends.blocksOf(event.to, event.id));
        return this.sends.sent(event.to, event.id) ? undefined : `nothing is being sent for request ${event.id}`;
      case 'stores':
        this.offers.stores = event.stores;
        return undefined;
      default:
        return assertNever(event);
    }
  }

  #endSsdRead(id: RequestId, bad?: SlotId): void {
    const blocks = this.#ssdReads.get(id);
    this.#ssdReads.delete(id);
    if (blocks !== undefined) this.#lower?.ssdReadEnded(blocks, bad);
  }

  /** Returns why the message changed nothing. */
  #receive(from: InstanceIndex, message: PrefixMessage): string | undefined {
    const { id } = message;
    const { nowUs } = this.#context;
    switch (message.kind) {
      case 'fetch':
        if (this.#stagings.begin(from, id, message)) return undefined;
        if (!this.sends.send(from, id, message)) return `request ${id} is being sent`;
        if (this.sends.blocksOf(from, id) > 0) this.offers.fetchStarted(nowUs, from, id);
        return undefined;
      case 'prefixMissing':
        return this.#arrive(id, from, 0);
      case 'cancelPrefix':
        this.offers.fetchEnded(nowUs, from, id, 0);
        if (this.#stagings.stop(from, id)) return undefined;
        return this.sends.stop(from, id) ? undefined : `nothing is being sent for request ${id}`;
      case 'offer':
        return this.offered.offered(from, message.chain);
      default:
        return assertNever(message);
    }
  }

  /** Blocks before `to` have arrived. Returns why the event changed nothing. */
  #arrive(id: RequestId, source: LoadSource, to: number): string | undefined {
    if (this.loads.arrive(id, source, to)) return undefined;
    if (source !== 'ssd' && this.offered.arrive(id, source, to)) return undefined;
    return `request ${id} does not wait for it`;
  }

  override advance(): void {
    const { nowUs, scheduler } = this.#context;
    this.loads.advance(nowUs, scheduler.waiting);
    this.offered.advance(nowUs);
  }

  /** SSD may have more of the prompt, and so has the instance that `prefix` names. */
  override accepted(running: S, _request: Request, { prefix, offer }: Continuation): void {
    if (offer !== undefined) this.offers.offerTo(running, offer);
    if (prefix !== undefined) this.loads.register(running, [{ source: prefix.from, to: prefix.blocks }], prefix);
    else if (this.#lower?.ssd !== undefined) this.loads.register(running, [], { patienceUs: Number.POSITIVE_INFINITY });
  }

  override started(running: S): void {
    this.loads.started(running);
  }

  override computed(running: S): void {
    this.offers.offer(running);
  }

  override waitEnded(running: S, arrived: boolean): void {
    if (running.sequence.arriving !== undefined) this.loads.stepRan(running, arrived);
  }

  override releaseRequest(_id: RequestId, running: S | undefined, reason: LeaveReason): boolean {
    if (running === undefined) return false;
    this.loads.cancel(running);
    if (reason === 'finished') this.offers.offer(running);
    return false;
  }

  override contribute(step: StepDraft<S>): void {
    if (this.loads.size > 0 && this.#config.aheadOfUse === true)
      step.waitsForBlocks ||= step.requests.some(({ sequence }) => sequence.arriving !== undefined);
  }

  /** The blocks that the step waits for that begins now. */
  pendingBlocks(nowUs: number): readonly PendingBlocks[] {
    return this.loads.pending(nowUs, this.#context.flight?.requests ?? []);
  }

  /** Number of loads, sends and fetches of offered prefixes in progress. */
  get inProgress(): number {
    return this.loads.size + this.sends.size + this.offered.size;
  }

  override get pending(): number {
    return this.loads.size;
  }

  override get nextUs(): number {
    return Math.min(this.loads.nextUs, this.offered.nextUs);
  }

  /** Undefined: the instance is no store. */
  get storeSnapshot(): StoreSnapshot | undefined {
    const { offered, sends } = this;
    if (this.#config.isStore !== true) return undefined;
    return { takenBlocks: offered.blocks, declinedOffers: offered.declined, sentBlocks: sends.blocks };
  }

  override snapshot(): Partial<InstanceSnapshot> {
    const store = this.storeSnapshot;
    if (store !== undefined) return { store };
    const { fetchedBlocks } = this.loads;
    const { blocks: proactiveBlocks } = this.offered;
    return fetchedBlocks + proactiveBlocks === 0 ? {} : { prefixCopies: { fetchedBlocks, proactiveBlocks } };
  }

  override check(): void {
    this.loads.check();
    this.offered.check();
  }

  fetch({ id, sequence }: S, { source, from, to }: LoadPart, buffer: PrefixReceiveBuffer): void {
    if (source !== 'ssd') {
      this.fetchFrom(id, sequence.chain, { source, from, to }, buffer);
      return;
    }
    const lower = this.#lower;
    const read = lower?.readSsd(sequence.chain, from, to, buffer) ?? { blocks: [], to };
    const { blocks } = read;
    this.#ssdReads.set(id, blocks);
    const pages = buffer.inPool && this.#hasContents ? buffer.pages(from, read.to) : undefined;
    const what = lower?.moves && { what: blocks, pages };
    this.#context.emit({ kind: 'readSsd', id, blocks: blocks.length, to: read.to, ...what });
    if (buffer.inPool) this.loads.announce(id, source, read.to);
  }

  fetchFrom(id: RequestId, { words }: BlockChain, { source, from, to }: PeerPart, buffer: PrefixReceiveBuffer): void {
    const ahead = buffer.inPool ? from : undefined;
    if (this.#hasContents)
      this.#context.emit({ kind: 'expectPrefix', id, from: source, pages: buffer.pages(from, to), ahead });
    const chain = { blocks: to, words: words.slice(0, to * digestWords) };
    this.#context.emit({ kind: 'send', to: source, message: { kind: 'fetch', id, chain, from } });
  }

  cancel({ id }: S, { source }: LoadPart): void {
    if (source !== 'ssd') {
      this.cancelFrom(id, source);
      return;
    }
    if (this.#lower?.moves !== undefined) this.#context.emit({ kind: 'stopRead', id });
    this.#endSsdRead(id);
  }

  cancelFrom(id: RequestId, source: InstanceIndex): void {
    if (this.#hasContents) this.#context.emit({ kind: 'closePrefix', id });
    this.#context.emit({ kind: 'send', to: source, message: { kind: 'cancelPrefix', id } });
  }

  ssdReadUs(blocks: number): number {
    return this.#config.ssdReadUs?.(blocks) ?? 0;
  }
}
