// Carries out what an instance's borrower wants: messages to others, blocks through the native messenger, queries to guest rooms.

import type { Borrower } from '../../core/lending/debtor/borrower.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { BlocksToMove, BorrowerEffect, FilledBlocks } from '../../core/protocol/lending-effects.ts';
import type { Envelope } from '../../core/protocol/lending-messages.ts';
import type { LendingSnapshot } from '../../core/protocol/ports.ts';
import type { Messenger, ReceiveBufferHandle } from '../transfer/messenger.ts';
import type { LenderRoutes } from './lender-routes.ts';
import { LendingCounters } from './lending-counters.ts';
import type { LendingWire } from './lending-wire.ts';
import { LentBlocks } from './lent-blocks.ts';
import type { RemoteAttentionServers } from './remote-attention.ts';

export interface LiveLendingOptions {
  readonly ways: LenderRoutes;
  readonly messenger: Messenger;
  readonly rooms: RemoteAttentionServers;
  readonly room: number;
  /** The room behind a door of another process. */
  readonly reach: (address: string) => number;
  /** (layers of the model, in the order of computation): place of each in its group. */
  readonly layers: readonly number[];
  /** (rows, layers): pages of blocks at home. */
  readonly pageTable: () => Int32Array;
  readonly blockBytes: number;
  /** Of the room: what a debtor's queries came to. */
  readonly guestCountsOf: (
    debtor: InstanceIndex,
  ) => Omit<LendingSnapshot['guests'], 'seconds' | 'restSeconds'> | undefined;
  /** Of the pool, one by one; done when it returns. */
  readonly copyPages: (from: Int32Array, to: Int32Array) => void;
  /** What is on its way from host memory to pages at home is there when it returns. */
  readonly settleLoads: () => void;
  /** May something else than moves still read one of these pages at home? Then they are not given up yet. */
  readonly isRead: (pages: Int32Array) => boolean;
  /** Of a core, in thousandths, that guests take at most while steps run here. */
  readonly remoteAttentionPermilleMax: number;
}

/** What leaves home of a move: (blocks, layers) pages, from a place of the landing on. */
interface Filling {
  readonly at: number;
  readonly pages: Int32Array;
  /** As the messenger numbers it; 0: computed before. */
  readonly step: number;
  readonly last: boolean;
}

/** A move of ours. */
interface Moving extends BlocksToMove {
  /** Ours, where it comes home; or the creditor's, where we send. */
  landing: ReceiveBufferHandle | undefined;
  /** Of one that leaves home: rows of the page table, by place; and what waits for a landing. */
  readonly rows: number[];
  waiting: Filling[];
}

/** Between two looks at what guests take. */
const lookUs = 1_000_000;
/** Between two looks at whether pages are still read. */
const releaseUs = 1000;

export class LiveLending {
  readonly #options: LiveLendingOptions;
  readonly #lent: LentBlocks;
  readonly #moves = new Map<number, Moving>();
  readonly #links = new LendingCounters();
  readonly #rooms = new Map<InstanceIndex, number>();
  /** Of other processes: where the room of each is. */
  readonly #doors = new Map<InstanceIndex, string>();
  /** What has arrived of pages at home that something else reads still. */
  #arrivedEarly: { readonly move: number; readonly pages: Int32Array }[] = [];
  /** When was it last asked what the messenger has given up? */
  #askedUs = 0;
  #looked = { us: 0, guestUs: 0, restUs: 0, stepUs: 0 };
  #stepUs = 0;

  constructor(options: LiveLendingOptions) {
    this.#options = options;
    const { rooms, room, messenger, layers, remoteAttentionPermilleMax } = options;
    this.#lent = new LentBlocks(messenger, layers.length);
    rooms.setGuestShare(room, remoteAttentionPermilleMax);
  }

  /** The guest room of a creditor; what is lent to us is there under our number. */
  serverOf(creditor: InstanceIndex): { readonly room: number; readonly loan: number } {
    return { room: this.#rooms.get(creditor) ?? 0, loan: this.#instance };
  }

  get #instance(): InstanceIndex {
    return this.#options.ways.instance;
  }

  /** @param borrower whose effects it carries out */
  snapshot({ totals, rmanager }: Pick<Borrower, 'totals' | 'rmanager'>): LendingSnapshot {
    const { rooms, room, guestCountsOf } = this.#options;
    const links = this.#links.all(rmanager.debtor.totals, guestCountsOf);
    const counts = { guests: rooms.guestCounts(room), remote: rooms.remoteCounts() };
    const { bytes: copiedBytes, earlyBytes } = this.#options.messenger.counts;
    return { ...totals, copiedBytes, earlyBytes, place: this.#instance, links, ...counts };
  }

  carryOut(effect: BorrowerEffect): void {
    const { rooms, room } = this.#options;
    switch (effect.kind) {
      case 'lending':
        this.#say(effect.envelope);
        break;
      case 'moveBlocks':
        this.#move(effect);
        break;
      case 'fillBlocks':
        this.#fill(effect);
        break;
      case 'copyHome':
        this.#options.copyPages(effect.from, effect.to);
        break;
      case 'stopMove':
        this.#stop(effect.move);
        break;
      case 'lendBlocks':
        this.#links.lent(effect.to);
        this.#lent.lend(effect.to, effect.blocks, effect.pages);
        rooms.lendBlocks(room, effect.to, Int32Array.from(effect.blocks), effect.pages);
        break;
      case 'takeBackBlocks':
        this.#lent.takeBack(effect.from, effect.blocks);
        rooms.takeBackBlocks(room, effect.from, Int32Array.from(effect.blocks));
        break;
    }
  }

  #say(envelope: Envelope): void {
    const { to } = envelope;
    if (to === 'gmanager') this.#options.ways.sendToManager(envelope);
    else this.#post(to, { kind: 'lending', envelope });
  }

  #post(to: InstanceIndex, wire: LendingWire): void {
    this.#options.ways.send(to, wire);
  }

  #move(move: BlocksToMove): void {
    const moving: Moving = { ...move, landing: undefined, rows: [], waiting: [] };
    this.#moves.set(move.move, moving);
    if (move.to === this.#instance) {
      moving.landing = this.#options.messenger.open(this.#homePages(move.targets));
      if (move.sources !== undefined)
        this.#post(move.from, { kind: 'copy', move: move.move, blocks: move.sources, landing: moving.landing });
    } else this.#post(move.to, { kind: 'expect', move: move.move, blocks: move.targets });
  }

  /** The creditor it goes to is ready. */
  #expected(move: number, landing: ReceiveBufferHandle): void {
    const moving = this.#moves.get(move);
    if (moving === undefined) return;
    const { sources, from } = moving;
    if (sources !== undefined) {
      this.#post(from, { kind: 'copy', move, blocks: sources, landing });
      return;
    }
    moving.landing = landing;
    for (const filling of moving.waiting.splice(0)) this.#send(landing, filling);
  }

  /** From home: what the step about to run computes leaves as its layers are ready. */
  #fill({ move, at, sources, step, last }: FilledBlocks): void {
    const moving = this.#moves.get(move);
    if (moving === undefined) return;
    moving.rows.splice(at, sources.length, ...sources);
    const { messenger, settleLoads } = this.#options;
    settleLoads();
    const filling = { at, pages: this.#homePages(sources), step: step === undefined ? 0 : messenger.nextStep, last };
    if (moving.landing === undefined) moving.waiting.push(filling);
    else this.#send(moving.landing, filling);
  }

  #stop(move: number): void {
    this.#arrivedEarly = this.#arrivedEarly.filter((early) => early.move !== move);
    const moving = this.#moves.get(move);
    if (moving === undefined) return;
    this.#moves.delete(move);
    const { from, to, landing } = moving;
    const { messenger } = this.#options;
    if (landing !== undefined && to === this.#instance) messenger.close(landing);
    if (landing !== undefined && from === this.#instance) messenger.stop(landing);
    for (const other of new Set([from, to])) if (other !== this.#instance) this.#post(other, { kind: 'drop', move });
  }

  #arrived(move: number): InstanceEvent | undefined {
    const moving = this.#moves.get(move);
    if (moving === undefined) return undefined;
    this.#moves.delete(move);
    const bytes = moving.targets.length * this.#options.blockBytes;
    const way = moving.landing === undefined ? undefined : this.#options.messenger.transportTo(moving.landing);
    for (const other of new Set([moving.from, moving.to]))
      if (other !== this.#instance) this.#links.moved(other, bytes, way);
    // It is done with them.
    if (moving.from !== this.#instance) this.#post(moving.from, { kind: 'drop', move });
    if (moving.from === this.#instance) {
      // What is not acknowledged yet would be sent again over the next connection.
      if (moving.landing !== undefined) this.#options.messenger.stop(moving.landing);
      const pages = this.#homePages(moving.rows);
      if (this.#options.isRead(pages)) {
        this.#arrivedEarly.push({ move, pages });
        return undefined;
      }
    }
    return { kind: 'moved', move };
  }

  /** Moves whose pages at home nobody reads any more. */
  #released(): readonly InstanceEvent[] {
    const early = this.#arrivedEarly;
    if (early.length === 0) return [];
    this.#arrivedEarly = early.filter(({ pages }) => this.#options.isRead(pages));
    const waiting = new Set(this.#arrivedEarly);
    return early.filter((each) => !waiting.has(each)).map(({ move }) => ({ kind: 'moved', move }));
  }

  #homePages(rows: readonly number[]): Int32Array {
    const { pageTable, layers } = this.#options;
    const width = layers.length;
    const table = pageTable();
    const pages = new Int32Array(rows.length * width);
    for (const [i, row] of rows.entries()) pages.set(table.subarray(row * width, (row + 1) * width), i * width);
    return pages;
  }

  /** Layer after layer: those of place i go to place `at` + i of the landing. */
  #send(landing: ReceiveBufferHandle, { at, pages, step, last }: Filling): void {
    const { layers, messenger } = this.#options;
    const width = layers.length;
    const parcels: number[] = [];
    for (const [layer, index] of layers.entries())
      for (let block = 0; block < pages.length / width; block++)
        parcels.push(layer, pages[block * width + index], (at + block) * width + index);
    // A step that is aborted writes them once more, with the same bits.
    messenger.send(landing, step, Int32Array.from(parcels), last, step === 0 ? undefined : pages);
  }

  /** What comes of messages about memory. */
  onEnvelope(envelope: Envelope): void {
    this.#links.heard(envelope);
  }

  /** Is heard from now on. */
  announceServer(): void {
    const { ways, room } = this.#options;
    ways.announceServer(room);
  }

  /** Another instance greets. */
  onServerAnnounced(from: InstanceIndex, room: number): void {
    this.#rooms.set(from, room);
    this.#post(from, { kind: 'room', room: this.#options.room });
  }

  /** What another instance's word is for the machine, if anything. */
  onMessage(from: InstanceIndex, wire: LendingWire): InstanceEvent | undefined {
    switch (wire.kind) {
      case 'room':
        this.#rooms.set(from, wire.room);
        return undefined;
      case 'door':
        this.#reach(from, wire.address);
        return undefined;
      case 'lending':
        return wire;
      case 'expect':
      case 'copy':
        this.#serve(from, wire);
        return undefined;
      case 'expected':
        this.#expected(wire.move, wire.landing);
        return undefined;
      case 'arrived':
        return this.#arrived(wire.move);
      case 'broken':
        if (!this.#moves.has(wire.move)) return undefined;
        this.#stop(wire.move);
        return { kind: 'moveBroken', move: wire.move };
      case 'drop':
        this.#lent.cancel(from, wire.move);
        return undefined;
      case 'remoteAttentionLoad':
        return { kind: 'remoteAttentionLoad', creditor: from, permille: wire.permille };
    }
  }

  #reach(creditor: InstanceIndex, address: string): void {
    if (this.#doors.get(creditor) === address) return;
    const { rooms, reach } = this.#options;
    const before = this.#rooms.get(creditor);
    if (before !== undefined) rooms.freeGuestRoom(before);
    this.#doors.set(creditor, address);
    this.#rooms.set(creditor, reach(address));
  }

  /** A debtor's copy begins or ends here. */
  #serve(debtor: InstanceIndex, wire: Extract<LendingWire, { kind: 'expect' | 'copy' }>): void {
    const { move, blocks } = wire;
    const pages = this.#lent.pagesOf(debtor, blocks);
    if (pages === undefined) this.#post(debtor, { kind: 'broken', move });
    else if (wire.kind === 'copy') {
      this.#lent.track({ debtor, move, blocks, landing: wire.landing, way: 'out' });
      this.#send(wire.landing, { at: 0, pages, step: 0, last: true });
    } else {
      const landing = this.#options.messenger.open(pages);
      this.#lent.track({ debtor, move, blocks, landing, way: 'in' });
      this.#post(debtor, { kind: 'expected', move, landing });
    }
  }

  /** When to ask for `news` again, if nothing comes before. */
  get nextUs(): number {
    if (this.#arrivedEarly.length > 0) return this.#askedUs + releaseUs;
    return this.#moves.size === 0 && !this.#lent.isCopying ? Number.POSITIVE_INFINITY : this.#askedUs + lookUs;
  }

  /** Events of what has landed since, and of what cannot leave. */
  poll(nowUs: number): readonly InstanceEvent[] {
    const events = [...this.#landed(), ...this.#released()];
    if (nowUs < this.nextUs) return events;
    this.#askedUs = nowUs;
    return [...events, ...this.#givenUp()];
  }

  #givenUp(): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const landing of this.#options.messenger.unreachable()) {
      const use = this.#lent.onUnreachable(landing);
      if (use !== undefined) this.#post(use.debtor, { kind: 'broken', move: use.move });
      const own = this.#moveTo(landing);
      if (own === undefined) continue;
      this.#stop(own);
      events.push({ kind: 'moveBroken', move: own });
    }
    return events;
  }

  #moveTo(landing: ReceiveBufferHandle): number | undefined {
    return [...this.#moves].find(([, moving]) => moving.landing === landing)?.[0];
  }

  #landed(): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const landing of this.#options.messenger.received()) {
      const use = this.#lent.onReceived(landing);
      if (use !== undefined) {
        this.#post(use.debtor, { kind: 'arrived', move: use.move });
        continue;
      }
      const own = this.#moveTo(landing);
      if (own === undefined) continue;
      const event = this.#arrived(own);
      this.#options.messenger.close(landing);
      if (event !== undefined) events.push(event);
    }
    return events;
  }

  /** A step has run for so long; now and then debtors hear that their guests' work is more than they may have here: what it would take were it not bounded. */
  onStepRan(nowUs: number, stepUs: number): void {
    this.#stepUs += stepUs;
    const elapsedUs = nowUs - this.#looked.us;
    if (elapsedUs < lookUs) return;
    const { rooms, room, remoteAttentionPermilleMax } = this.#options;
    const { seconds, restSeconds } = rooms.guestCounts(room);
    const now = { us: nowUs, guestUs: 1e6 * seconds, restUs: 1e6 * restSeconds, stepUs: this.#stepUs };
    const { guestUs, restUs, stepUs: ownUs } = this.#looked;
    this.#looked = now;
    // Who rests is bounded; where steps of ours do not run most of the time nobody is in anybody's way.
    const freeUs = Math.max(1, elapsedUs - (now.restUs - restUs));
    const permille = Math.min(1000, Math.round((1000 * (now.guestUs - guestUs)) / freeUs));
    if ((now.stepUs - ownUs) * 2 < elapsedUs || permille <= remoteAttentionPermilleMax) return;
    for (const debtor of this.#lent.debtors) this.#post(debtor, { kind: 'remoteAttentionLoad', permille });
  }
}
