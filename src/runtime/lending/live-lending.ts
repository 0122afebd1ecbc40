// Carries out the lending effects of an instance: sends messages, moves blocks through the messenger, and lends blocks to
// remote attention.

import { linkDistance, linkFigures } from '../../core/cost/links/link-distance.ts';
import { LinkMeter } from '../../core/cost/links/link-meter.ts';
import type { Creditor } from '../../core/lending/creditor/creditor.ts';
import type { Borrower } from '../../core/lending/debtor/borrower.ts';
import type { Debtor } from '../../core/lending/debtor/debtor.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { BlocksToMove, BorrowerEffect, FilledBlocks } from '../../core/protocol/lending-effects.ts';
import type { Envelope } from '../../core/protocol/lending-messages.ts';
import type { LinkReport } from '../../core/protocol/lending-report.ts';
import type { LendingLink, LendingSnapshot } from '../../core/protocol/ports.ts';
import { assertNever } from '../../util/assert-never.ts';
import { nowUs } from '../threads/alarm.ts';
import { LinkRates } from '../transfer/link-rates.ts';
import type { Messenger, PageTransport, ReceiveBufferHandle } from '../transfer/messenger.ts';
import { AttentionWays, type AttentionWaysOptions } from './attention-ways.ts';
import { DebtorLoads, ServedShare } from './debtor-loads.ts';
import type { LenderRoutes, LendingWire } from './lending-wire.ts';
import { LentBlocks } from './lent-blocks.ts';

/** The remote attention servers of a backend, and its clients of other servers. */
export interface RemoteAttentionServers {
  /** @param pages (blocks, layers) */
  lendBlocks(server: number, loan: number, blocks: Int32Array, pages: Int32Array): void;
  /** When it returns, remote attention uses none of these blocks. */
  takeBackBlocks(server: number, loan: number, blocks: Int32Array): void;
  /** Largest share of a core for a loan's queries while steps run. */
  setRemoteAttentionShare(server: number, loan: number, thousandths: number): void;
  remoteAttentionCounts(server: number): LendingSnapshot['servedAttention'];
  freeRemoteAttentionServer(server: number): void;
  remoteCounts(): LendingSnapshot['remoteAttention'];
}

/** The parts of an instance that lending uses. */
export interface LendingHost {
  /** Creates a client of the remote attention server at an address of another process. */
  connectServer(address: string): number;
  /** (rows, layers): pages of the instance's own blocks. */
  pageTable(): Int32Array;
  /** Counters of a debtor's remote attention here. */
  loanCounts(debtor: InstanceIndex): LendingSnapshot['servedAttention'] | undefined;
  /** Copies pages of the pool one by one; done when it returns. */
  copyPages(from: Int32Array, to: Int32Array): void;
  /** When it returns, all loads from host memory have completed. */
  finishLoads(): void;
  /** True while a transfer other than a move may read one of these pages; they are released later. */
  isRead(pages: Int32Array): boolean;
}

export interface LiveLendingOptions {
  readonly host: LendingHost;
  readonly routes: LenderRoutes;
  readonly messenger: Messenger;
  readonly servers: RemoteAttentionServers;
  /** The remote attention server of this instance. */
  readonly server: number;
  /** (layers of the model, in the order of computation): index of each in its group. */
  readonly layers: readonly number[];
  readonly blockBytes: number;
  /** Largest share of a core, in thousandths, for remote attention while steps run here. */
  readonly remoteAttentionPermilleMax: number;
  /** Which way the attention of steps goes. */
  readonly attention: AttentionWaysOptions;
}

/** Own blocks of a move that are sent: (blocks, layers) pages, to the receive buffer from index `at` on. */
interface Outgoing {
  readonly at: number;
  readonly pages: Int32Array;
  /** The messenger's number of the step that computes them; 0: they are computed. */
  readonly step: number;
  readonly last: boolean;
}

/** A move that this instance requested. */
interface ActiveMove extends BlocksToMove {
  /** The receive buffer: this instance's for a move home, else the creditor's. */
  receiveBuffer: ReceiveBufferHandle | undefined;
  /** For a move to a creditor: rows of the page table in order, and blocks that wait for the receive buffer. */
  readonly rows: number[];
  waiting: Outgoing[];
}

/** Interval between checks of unreachable peers. */
const checkUs = 1_000_000;
/** Interval between checks whether moved pages are still read. */
const releaseUs = 1000;

export class LiveLending {
  readonly #options: LiveLendingOptions;
  readonly #lent: LentBlocks;
  readonly #moves = new Map<number, ActiveMove>();
  readonly #counters = new LendingCounters();
  /** By creditor: its remote attention server, or a client of it. */
  readonly #creditorServers = new Map<InstanceIndex, number>();
  /** By creditor in another process: the address of its server. */
  readonly #addresses = new Map<InstanceIndex, string>();
  /** Completed moves whose own pages another transfer still reads. */
  #unreleased: { readonly move: number; readonly pages: Int32Array }[] = [];
  /** Time of the last check for unreachable receive buffers. */
  #checkedUs = 0;
  readonly #loads: DebtorLoads;
  readonly #meter = new LinkMeter();
  readonly #rates: LinkRates;
  /** Which way the attention of each step goes. */
  readonly ways: AttentionWays;
  readonly #served: ServedShare;
  /** The links that the state machine received last, and when. */
  #reportedLinks = '[]';
  #reportedLinksUs = 0;

  constructor(options: LiveLendingOptions) {
    this.#options = options;
    const { host, messenger, layers } = options;
    this.#lent = new LentBlocks(messenger, layers.length);
    this.#served = new ServedShare(() => options.servers.remoteAttentionCounts(options.server).seconds);
    this.#loads = new DebtorLoads((debtor) => host.loanCounts(debtor));
    this.#rates = new LinkRates(messenger, this.#meter);
    this.ways = new AttentionWays(options.attention, options.routes.instance, (creditor) =>
      linkFigures(this.#meter.report(nowUs(), creditor)),
    );
  }

  /** The creditor's remote attention server, and the loan there, which is this instance's lender number. */
  serverOf(creditor: InstanceIndex): { readonly server: number; readonly loan: number } {
    return { server: this.#creditorServers.get(creditor) ?? 0, loan: this.#instance };
  }

  get #instance(): InstanceIndex {
    return this.#options.routes.instance;
  }

  /** @param borrower the borrower of the instance */
  snapshot({ totals, rmanager }: Pick<Borrower, 'totals' | 'rmanager'>): LendingSnapshot {
    const { servers, server, host } = this.#options;
    const at = nowUs();
    const links = this.#counters
      .links(rmanager.debtor.totals, (debtor) => host.loanCounts(debtor))
      .map((link) => ({ ...link, ...measuredLink(this.#meter.report(at, link.peer)) }));
    const servedAttention = servers.remoteAttentionCounts(server);
    const { keyBytes } = this.ways;
    const remoteAttention = { ...servers.remoteCounts(), ...(keyBytes > 0 && { keyBytes }) };
    const { bytes: copiedBytes, earlyBytes } = this.#options.messenger.counts;
    const bytes = { copiedBytes, overlappedBytes: earlyBytes };
    return { ...totals, ...bytes, lenderNumber: this.#instance, links, servedAttention, remoteAttention };
  }

  carryOut(effect: BorrowerEffect): void {
    const { servers, server } = this.#options;
    switch (effect.kind) {
      case 'lending':
        this.#sendEnvelope(effect.envelope);
        break;
      case 'moveBlocks':
        this.#move(effect);
        break;
      case 'fillBlocks':
        this.#fill(effect);
        break;
      case 'copyHome':
        this.#options.host.copyPages(effect.from, effect.to);
        break;
      case 'stopMove':
        this.#stop(effect.move);
        break;
      case 'lendBlocks':
        if (this.#counters.onLent(effect.to))
          servers.setRemoteAttentionShare(server, effect.to, this.#options.remoteAttentionPermilleMax);
        this.#lent.lend(effect.to, effect.blocks, effect.pages);
        servers.lendBlocks(server, effect.to, Int32Array.from(effect.blocks), effect.pages);
        break;
      case 'takeBackBlocks':
        this.#lent.takeBack(effect.from, effect.blocks);
        servers.takeBackBlocks(server, effect.from, Int32Array.from(effect.blocks));
        break;
      default:
        assertNever(effect);
    }
  }

  #sendEnvelope(envelope: Envelope): void {
    const { to } = envelope;
    if (to === 'gmanager') this.#options.routes.sendToManager(envelope);
    else this.#sendWire(to, { kind: 'lending', envelope });
  }

  #sendWire(to: InstanceIndex, wire: LendingWire): void {
    this.#options.routes.send(to, wire);
  }

  #move(move: BlocksToMove): void {
    const activeMove: ActiveMove = { ...move, receiveBuffer: undefined, rows: [], waiting: [] };
    this.#moves.set(move.move, activeMove);
    if (move.to === this.#instance) {
      activeMove.receiveBuffer = this.#options.messenger.open(this.#ownPages(move.targets));
      if (move.sources !== undefined)
        this.#sendWire(move.from, {
          kind: 'copy',
          move: move.move,
          blocks: move.sources,
          receiveBuffer: activeMove.receiveBuffer,
        });
    } else this.#sendWire(move.to, { kind: 'prepareCopy', move: move.move, blocks: move.targets });
  }

  /** The receiving creditor has opened its receive buffer. */
  #onPrepared(move: number, receiveBuffer: ReceiveBufferHandle): void {
    const activeMove = this.#moves.get(move);
    if (activeMove === undefined) return;
    const { sources, from } = activeMove;
    if (sources !== undefined) {
      this.#sendWire(from, { kind: 'copy', move, blocks: sources, receiveBuffer });
      return;
    }
    activeMove.receiveBuffer = receiveBuffer;
    for (const outgoing of activeMove.waiting.splice(0)) this.#sendMove(activeMove, receiveBuffer, outgoing);
  }

  /** Sends own blocks. Those that the next step computes are sent layer by layer as it runs. */
  #fill({ move, at, sources, step, last }: FilledBlocks): void {
    const activeMove = this.#moves.get(move);
    if (activeMove === undefined) return;
    activeMove.rows.splice(at, sources.length, ...sources);
    const { messenger, host } = this.#options;
    host.finishLoads();
    const outgoing = {
      at,
      pages: this.#ownPages(sources),
      step: step === undefined ? 0 : messenger.nextPoolStep,
      last,
    };
    if (activeMove.receiveBuffer === undefined) activeMove.waiting.push(outgoing);
    else this.#sendMove(activeMove, activeMove.receiveBuffer, outgoing);
  }

  #stop(move: number): void {
    this.#unreleased = this.#unreleased.filter((each) => each.move !== move);
    const activeMove = this.#moves.get(move);
    if (activeMove === undefined) return;
    this.#moves.delete(move);
    this.#rates.ended(nowUs(), `move ${move}`);
    const { from, to, receiveBuffer } = activeMove;
    const { messenger } = this.#options;
    if (receiveBuffer !== undefined && to === this.#instance) messenger.close(receiveBuffer);
    if (receiveBuffer !== undefined && from === this.#instance) messenger.stop(receiveBuffer);
    for (const other of new Set([from, to]))
      if (other !== this.#instance) this.#sendWire(other, { kind: 'endCopy', move });
  }

  #complete(move: number): InstanceEvent | undefined {
    const activeMove = this.#moves.get(move);
    if (activeMove === undefined) return undefined;
    this.#moves.delete(move);
    const bytes = activeMove.targets.length * this.#options.blockBytes;
    const transport =
      activeMove.receiveBuffer === undefined
        ? undefined
        : this.#options.messenger.transportTo(activeMove.receiveBuffer);
    const at = nowUs();
    for (const other of new Set([activeMove.from, activeMove.to])) {
      if (other === this.#instance) continue;
      this.#counters.moved(other, bytes, transport);
      if (transport !== undefined) this.#meter.connected(at, other, transport);
    }
    this.#rates.ended(at, `move ${move}`);
    // The sender may release the blocks.
    if (activeMove.from !== this.#instance) this.#sendWire(activeMove.from, { kind: 'endCopy', move });
    if (activeMove.from === this.#instance) {
      // Otherwise unacknowledged pages would be sent again over the next connection.
      if (activeMove.receiveBuffer !== undefined) this.#options.messenger.stop(activeMove.receiveBuffer);
      const pages = this.#ownPages(activeMove.rows);
      if (this.#options.host.isRead(pages)) {
        this.#unreleased.push({ move, pages });
        return undefined;
      }
    }
    return { kind: 'moved', move };
  }

  /** Completed moves with own pages that are no longer read. */
  #released(): readonly InstanceEvent[] {
    const all = this.#unreleased;
    if (all.length === 0) return [];
    this.#unreleased = all.filter(({ pages }) => this.#options.host.isRead(pages));
    const waiting = new Set(this.#unreleased);
    return all.filter((each) => !waiting.has(each)).map(({ move }) => ({ kind: 'moved', move }));
  }

  #ownPages(rows: readonly number[]): Int32Array {
    const { host, layers } = this.#options;
    const width = layers.length;
    const table = host.pageTable();
    const pages = new Int32Array(rows.length * width);
    for (const [i, row] of rows.entries()) pages.set(table.subarray(row * width, (row + 1) * width), i * width);
    return pages;
  }

  /** Sends blocks of an own move, and measures the link to their creditor. */
  #sendMove({ move, to }: ActiveMove, receiveBuffer: ReceiveBufferHandle, outgoing: Outgoing): void {
    const { blockBytes, layers } = this.#options;
    this.#rates.add(to, `move ${move}`, (outgoing.pages.length / layers.length) * blockBytes);
    this.#send(receiveBuffer, outgoing);
  }

  /** Sends layer after layer. Block i goes to index `at` + i of the receive buffer. */
  #send(receiveBuffer: ReceiveBufferHandle, { at, pages, step, last }: Outgoing): void {
    const { layers, messenger } = this.#options;
    const width = layers.length;
    const descriptors: number[] = [];
    for (const [layer, index] of layers.entries())
      for (let block = 0; block < pages.length / width; block++)
        descriptors.push(layer, pages[block * width + index], (at + block) * width + index);
    // After an aborted step the pages are written again, with the same bits.
    messenger.send(receiveBuffer, step, Int32Array.from(descriptors), last, step === 0 ? undefined : pages);
  }

  /** Counts a received lending message. */
  onEnvelope(envelope: Envelope): void {
    this.#counters.onEnvelope(envelope);
  }

  /** Announces the remote attention server to the other lenders. */
  announceServer(): void {
    const { routes, server } = this.#options;
    routes.announceServer(server);
  }

  /** Another lender has announced its server; the reply names this instance's. */
  onServerAnnounced(from: InstanceIndex, server: number): void {
    this.#connectedInProcess(from, server);
    this.#sendWire(from, { kind: 'attentionServer', server: this.#options.server });
  }

  /** Handles a message of another lender. Returns the event for the state machine, if any. */
  onMessage(from: InstanceIndex, wire: LendingWire): InstanceEvent | undefined {
    switch (wire.kind) {
      case 'attentionServer':
        this.#connectedInProcess(from, wire.server);
        return undefined;
      case 'roundTrip':
        this.#meter.roundTrip(nowUs(), from, wire.us);
        return undefined;
      case 'attentionAddress':
        this.#connect(from, wire.address);
        return undefined;
      case 'lending':
        return wire;
      case 'prepareCopy':
      case 'copy':
        this.#serve(from, wire);
        return undefined;
      case 'copyPrepared':
        this.#onPrepared(wire.move, wire.receiveBuffer);
        return undefined;
      case 'copyReceived':
        return this.#complete(wire.move);
      case 'copyFailed':
        if (!this.#moves.has(wire.move)) return undefined;
        this.#stop(wire.move);
        return { kind: 'moveBroken', move: wire.move };
      case 'endCopy':
        this.#lent.cancel(from, wire.move);
        return undefined;
      case 'remoteAttentionLoad':
        return { kind: 'remoteAttentionLoad', creditor: from, permille: wire.permille };
      default:
        return assertNever(wire);
    }
  }

  #connectedInProcess(creditor: InstanceIndex, server: number): void {
    this.#creditorServers.set(creditor, server);
    this.ways.connected(creditor, server);
    this.#meter.connected(nowUs(), creditor, 'thread');
  }

  #connect(creditor: InstanceIndex, address: string): void {
    if (this.#addresses.get(creditor) === address) return;
    const { servers, host } = this.#options;
    const before = this.#creditorServers.get(creditor);
    if (before !== undefined) servers.freeRemoteAttentionServer(before);
    this.#addresses.set(creditor, address);
    // A new address may be on another host.
    this.#meter.forget(creditor);
    const client = host.connectServer(address);
    this.#creditorServers.set(creditor, client);
    this.ways.connected(creditor, client);
  }

  /** Starts a copy for a debtor, into or out of the blocks that are lent to it. */
  #serve(debtor: InstanceIndex, wire: Extract<LendingWire, { kind: 'prepareCopy' | 'copy' }>): void {
    const { move, blocks } = wire;
    const pages = this.#lent.pagesOf(debtor, blocks);
    if (pages === undefined) this.#sendWire(debtor, { kind: 'copyFailed', move });
    else if (wire.kind === 'copy') {
      this.#lent.track({ debtor, move, blocks, receiveBuffer: wire.receiveBuffer, direction: 'out' });
      this.#send(wire.receiveBuffer, { at: 0, pages, step: 0, last: true });
    } else {
      const receiveBuffer = this.#options.messenger.open(pages);
      this.#lent.track({ debtor, move, blocks, receiveBuffer, direction: 'in' });
      this.#sendWire(debtor, { kind: 'copyPrepared', move, receiveBuffer });
    }
  }

  /** Time of the next `poll`, if no event comes earlier. */
  get nextUs(): number {
    if (this.#unreleased.length > 0) return this.#checkedUs + releaseUs;
    return this.#moves.size === 0 && !this.#lent.isCopying ? Number.POSITIVE_INFINITY : this.#checkedUs + checkUs;
  }

  /** Events of moves that have completed or failed since the last call. */
  poll(atUs: number): readonly InstanceEvent[] {
    const events = [...this.#received(), ...this.#released(), ...this.#changedLinks(atUs), ...this.#served.changed()];
    if (atUs < this.nextUs) return events;
    this.#checkedUs = atUs;
    return [...events, ...this.#unreachable()];
  }

  /** The measured links, once a second if they have changed. */
  #changedLinks(atUs: number): readonly InstanceEvent[] {
    if (atUs < this.#reportedLinksUs + checkUs) return [];
    this.#reportedLinksUs = atUs;
    const links = this.#meter.reports(atUs);
    const text = JSON.stringify(links);
    if (text === this.#reportedLinks) return [];
    this.#reportedLinks = text;
    return [{ kind: 'links', links }];
  }

  #unreachable(): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const receiveBuffer of this.#options.messenger.unreachable()) {
      const copy = this.#lent.onUnreachable(receiveBuffer);
      if (copy !== undefined) this.#sendWire(copy.debtor, { kind: 'copyFailed', move: copy.move });
      const move = this.#moveTo(receiveBuffer);
      if (move === undefined) continue;
      this.#stop(move);
      events.push({ kind: 'moveBroken', move });
    }
    return events;
  }

  #moveTo(receiveBuffer: ReceiveBufferHandle): number | undefined {
    return [...this.#moves].find(([, activeMove]) => activeMove.receiveBuffer === receiveBuffer)?.[0];
  }

  #received(): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const receiveBuffer of this.#options.messenger.received()) {
      const copy = this.#lent.onReceived(receiveBuffer);
      if (copy !== undefined) {
        this.#sendWire(copy.debtor, { kind: 'copyReceived', move: copy.move });
        continue;
      }
      const move = this.#moveTo(receiveBuffer);
      if (move === undefined) continue;
      const event = this.#complete(move);
      this.#options.messenger.close(receiveBuffer);
      if (event !== undefined) events.push(event);
    }
    return events;
  }

  /** A step of the instance begins. */
  onStepBegins(): void {
    if (this.#counters.hasLent) this.#served.stepBegins();
  }

  /**
   * Counts a step. Once a second the remote attention server receives the debtors' shares, and each debtor whose queries
   * would exceed its share without the limit receives its load.
   */
  onStepRan(nowUs: number, stepUs: number, { attentionShares }: Pick<Creditor, 'attentionShares'>): void {
    if (this.#counters.hasLent) this.#served.stepEnded(stepUs);
    if (!this.#loads.onStepRan(nowUs, stepUs)) return;
    this.#served.endWindow();
    const { servers, server } = this.#options;
    for (const { debtor, permille } of attentionShares) servers.setRemoteAttentionShare(server, debtor, permille);
    for (const { debtor, permille } of this.#loads.beyond(attentionShares, nowUs))
      this.#sendWire(debtor, { kind: 'remoteAttentionLoad', permille });
  }
}

function measuredLink({ roundTripUs, bytesPerSecond, ...report }: LinkReport): Partial<LendingLink> {
  return {
    ...(roundTripUs !== undefined && { roundTripUs }),
    ...(bytesPerSecond !== undefined && { bytesPerSecond }),
    distance: linkDistance([{ ...report, roundTripUs, bytesPerSecond }]),
  };
}

/** Counters of one other lender. */
interface LenderCounts {
  movedBytes: number;
  refusals: number;
  transport?: PageTransport;
}

class LendingCounters {
  readonly #counts = new Map<InstanceIndex, LenderCounts>();
  /** Instances that have borrowed here. */
  readonly #debtors = new Set<InstanceIndex>();

  /** @param transport undefined if unknown */
  moved(peer: InstanceIndex, bytes: number, transport: PageTransport | undefined): void {
    const counts = this.#countsOf(peer);
    counts.movedBytes += bytes;
    if (transport !== undefined) counts.transport = transport;
  }

  get hasLent(): boolean {
    return this.#debtors.size > 0;
  }

  /** True for the debtor's first loan. */
  onLent(debtor: InstanceIndex): boolean {
    const isFirst = !this.#debtors.has(debtor);
    this.#debtors.add(debtor);
    return isFirst;
  }

  onEnvelope({ from, message }: Envelope): void {
    if (message.kind === 'refuse' && from !== 'gmanager') this.#countsOf(from).refusals++;
  }

  #countsOf(peer: InstanceIndex): LenderCounts {
    const counts = this.#counts.get(peer) ?? { movedBytes: 0, refusals: 0 };
    this.#counts.set(peer, counts);
    return counts;
  }

  /** @param loanCounts counters of a debtor's remote attention here */
  links(
    totals: Debtor['totals'],
    loanCounts: (debtor: InstanceIndex) => LendingSnapshot['servedAttention'] | undefined,
  ): readonly LendingLink[] {
    const peers = new Set([...this.#counts.keys(), ...this.#debtors, ...totals.map(({ creditor }) => creditor)]);
    return [...peers]
      .sort((a, b) => a - b)
      .map((peer) => {
        const debts = totals.filter(({ creditor }) => creditor === peer);
        const { queries = 0, refused = 0, bytesIn = 0, bytesOut = 0 } = loanCounts(peer) ?? {};
        const remote = { queries, refusedQueries: refused, queryBytes: bytesIn, partialBytes: bytesOut };
        const borrowedBlocks = debts.reduce((sum, { blocks }) => sum + blocks, 0);
        return { peer, borrowedBlocks, ...this.#countsOf(peer), ...remote };
      });
  }
}
