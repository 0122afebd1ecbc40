// The KV cache of an instance: sequences allocate blocks from it, share them, and leave them behind as prefix cache.
import { digestWords } from '../../util/blake2s.ts';
import { boundPages, type LayerGroup } from '../../util/step.ts';
import type { BlockChain } from '../protocol/kv-events.ts';
import { BlockAgeCounter } from './block-ages.ts';
import type { BlockTable } from './block-table.ts';
import { CheckInterval } from './check-interval.ts';
import type { TierListener } from './events/kv-event-log.ts';
import { type BlockFacts, EvictionQueue, type EvictionRule } from './eviction.ts';
import { ExtraPageRows, type HostRows } from './extra-page-rows.ts';
import { GroupCache, type Growth } from './group-cache.ts';
import { blockPages, blocksFor, capacityTokens } from './layer-groups.ts';
import { LendingMemory } from './lending-memory.ts';
import { PagePool } from './pools/page-pool.ts';
import { exchangeReceived, type ReceivedPrompt, ReceivePages } from './receive-pages.ts';
import { BoundMemory, BoundPages } from './sparsity/bound-pages.ts';
import { pagesOfLayout, type SlotLayout, SlotMemory } from './sparsity/slot-pages.ts';
import { LowerTiers, type LowerTiersConfig } from './tiers/lower-tiers.ts';
import { type TierMover, TierMoves } from './tiers/tier-moves.ts';
import { WholeGroups } from './whole-groups.ts';

export interface TiersConfig extends Omit<LowerTiersConfig, 'eviction' | 'facts' | 'moves'> {
  /**
   * Copies block contents between tiers; undefined where blocks have no contents. The page ids behind the pool's own
   * are those of host memory, slot by slot.
   */
  readonly mover?: TierMover | undefined;
}

export interface BlockCacheConfig {
  readonly pages: number;
  /** Id of the first page, and the page tables of the layer groups, of a part of a larger memory; else 0 and its own. */
  readonly firstPage?: number | undefined;
  readonly pageTables?: readonly Int32Array[] | undefined;
  /** Tokens of a block, and so of a page. */
  readonly blockTokens: number;
  /** Layer groups of the model, at least one. They share the pages. */
  readonly groups: readonly LayerGroup[];
  readonly eviction: EvictionRule;
  /** For eviction policies; undefined: blocks have no cost and no future. */
  readonly facts?: BlockFacts | undefined;
  /** Additional pages that receive the KV of prompts computed by other instances. */
  readonly receivePages?: number | undefined;
  /** Host memory and SSD below device memory. */
  readonly tiers?: TiersConfig | undefined;
  /** Share of the pages that pinned prefixes may occupy; 0 by default. */
  readonly pinShare?: number | undefined;
  /**
   * Blocks of the staging buffer, which receives remote blocks on their way back. Undefined: no block is remote. Only
   * for models with one layer group.
   */
  readonly stagingBlocks?: number | undefined;
  /** Host memory that holds blocks of sequences, where contents are real. */
  readonly hostRows?: HostRows | undefined;
}

/**
 * Full blocks are indexed by digest. A block without references stays cached until its pages are required.
 * A prefix is reusable if groups without a window have every block of it, and the other groups have the blocks that the
 * next row attends to. Evicting a block of a group without a window therefore also evicts the blocks of the same digest
 * in groups with one, unless a sequence with slots instead of the evicted block uses them.
 */
export class BlockCache {
  readonly pages: PagePool;
  readonly receivePages: ReceivePages;
  readonly blockTokens: number;
  /** In the order of the model's groups. */
  readonly groups: readonly GroupCache[];
  /** Pages of one block over all groups. */
  readonly blockPages: number;
  /** Host memory and SSD; undefined where evicted blocks are lost. */
  readonly lower: LowerTiers | undefined;
  /** Page-table rows of local blocks outside block tables; undefined where every block is in a table. */
  readonly extraRows: ExtraPageRows | undefined;
  readonly #whole: readonly GroupCache[];
  readonly #windowed: readonly GroupCache[];
  /** The groups with the blocks that the cache reports. */
  readonly reported: WholeGroups;
  /** All groups: lower tiers and transfers have the pages of each. */
  readonly all: WholeGroups;
  /** True if sequences release blocks of some layers: device memory then has no complete prefix to send. */
  readonly hasWindows: boolean;
  readonly #queue: EvictionQueue;
  readonly ages: BlockAgeCounter;
  /** Tables that belong to no sequence: blocks in transit between instances or tiers. */
  readonly inTransit = new Set<BlockTable>();
  /** Tables of pinned prefixes. */
  readonly pinned = new Set<BlockTable>();
  /** Kept tokens of sequences with a KV budget. */
  readonly slots: SlotMemory;
  /** Bounds of the keys of sequences whose rows choose pages. */
  readonly bounds: BoundMemory;
  #lending: LendingMemory | undefined;
  readonly #capacityOf: (pages: number) => number;
  #capacityTokens: number;
  #evicted = 0;
  readonly #checks = new CheckInterval();

  constructor(config: BlockCacheConfig) {
    const {
      pages,
      blockTokens,
      groups,
      eviction,
      facts,
      firstPage = 0,
      pageTables,
      receivePages = 0,
      tiers,
      pinShare = 0,
      stagingBlocks,
      hostRows,
    } = config;
    this.blockTokens = blockTokens;
    this.blockPages = blockPages(groups);
    this.pages = new PagePool(pages, firstPage + receivePages + (stagingBlocks ?? 0) * this.blockPages);
    this.slots = new SlotMemory(this.pages);
    this.bounds = new BoundMemory(this.pages);
    this.receivePages = new ReceivePages(receivePages, firstPage);
    this.#capacityOf = (count) => capacityTokens(groups, count - Math.floor(count * pinShare), blockTokens);
    this.#capacityTokens = this.#capacityOf(pages);
    const ends = [0];
    for (const { layers } of groups) ends.push(ends[ends.length - 1] + Math.floor(pages / layers));
    this.#queue = new EvictionQueue(ends[groups.length], eviction, facts);
    this.ages = new BlockAgeCounter(ends[groups.length]);
    const uses = { queue: this.#queue, ages: this.ages };
    const extraRows =
      stagingBlocks === undefined ? 0 : ExtraPageRows.rowCount(ends[groups.length], stagingBlocks, hostRows);
    this.groups = groups.map(
      (group, i) => new GroupCache(group, blockTokens, this.pages, uses, ends[i], extraRows, pageTables?.[i]),
    );
    if (stagingBlocks !== undefined) this.extraRows = this.#createExtraRows(stagingBlocks, receivePages, hostRows);
    this.#whole = this.groups.filter(({ window }) => window === undefined);
    this.#windowed = this.groups.filter(({ window }) => window !== undefined);
    this.reported = new WholeGroups(this.#whole.length > 0 ? this.#whole : this.groups.slice(0, 1));
    this.all = new WholeGroups(this.groups);
    this.hasWindows = this.#windowed.length > 0;
    if (tiers === undefined) return;
    const moves = tiers.mover && new TierMoves(this.all, this.reported, this.pages.ids, tiers.mover);
    this.lower = new LowerTiers({ ...tiers, eviction, facts, moves }, (words, at) => this.reported.holds(words, at));
    this.reported.setListener(this.lower);
  }

  #createExtraRows(stagingBlocks: number, firstPage: number, host: HostRows | undefined): ExtraPageRows {
    const [group, other] = this.groups;
    if (other === undefined && group.window === undefined)
      return new ExtraPageRows(group.pool, this.lending, stagingBlocks, firstPage, host);
    throw new Error('Cannot lend blocks: only models of one layer group without a window do');
  }

  /** Blocks that the table lacks to hold `tokens` tokens. */
  blocksMissing(table: BlockTable, tokens: number): number {
    return Math.max(0, blocksFor(tokens, this.blockTokens) - table.length);
  }

  /** Blocks evicted so far, over all groups. */
  get evicted(): number {
    return this.#evicted;
  }

  /**
   * From now on `listener` receives every block stored and removed, over all tiers. It observes the groups without a
   * window, or else the first group.
   */
  setListener(listener: TierListener | undefined): void {
    if (this.lower === undefined) this.reported.setListener(listener);
    else this.lower.listener = listener;
  }

  /** True if the block of the digest at `words[at..at+4]` is reported as stored. */
  holds(words: Uint32Array, at: number): boolean {
    return this.reported.holds(words, at) || this.lower?.holds(words, at) === true;
  }

  /** (blocks, 4 words): digests of all blocks that are reported as stored. */
  indexedDigests(): Uint32Array {
    const here = this.reported.indexedDigests();
    return this.lower === undefined ? here : this.lower.withLowerTiers(here);
  }

  /** Pages that can be allocated without preempting a sequence. */
  get availablePages(): number {
    return this.pages.free + this.cachedPages;
  }

  get usedPages(): number {
    let pages = this.slots.pages + this.bounds.pages;
    for (let g = 0; g < this.groups.length; g++) pages += this.groups[g].pool.usedPages;
    return pages;
  }

  get cachedPages(): number {
    let pages = 0;
    for (let g = 0; g < this.groups.length; g++) pages += this.groups[g].pool.cachedPages;
    return pages;
  }

  /** Pages of blocks lent to other instances. */
  get lentPages(): number {
    return this.#lending?.lentPages ?? 0;
  }

  /**
   * Allocates single blocks from the same pages, for loans to other instances. A block has the pages of every group.
   */
  get lending(): LendingMemory {
    this.#lending ??= new LendingMemory(this);
    return this.#lending;
  }

  /**
   * Blocks of the longest reusable prefix of the chain, at most `blocksMax`. Adds no reference: valid until the next
   * allocation. A caller with repeated lookups of one chain passes the same `last`, which makes them cheap.
   */
  match(chain: BlockChain, blocksMax: number, last = new LastMatch()): number {
    const limit = Math.min(blocksMax, chain.blocks);
    let changes = 0;
    for (let g = 0; g < this.groups.length; g++) changes += this.groups[g].changes;
    if (last.changes === changes && last.blocksMax === limit) return last.blocks;
    let blocks = limit;
    for (let g = 0; g < this.#whole.length; g++) blocks = this.#whole[g].indexedPrefix(chain, blocks, last.blocks);
    // A prefix cut for one window may end outside the blocks of another.
    let before: number;
    do {
      before = blocks;
      for (let g = 0; g < this.#windowed.length; g++) blocks = this.#windowed[g].coveredTo(chain, blocks);
    } while (blocks < before);
    last.changes = changes;
    last.blocksMax = limit;
    last.blocks = blocks;
    return blocks;
  }

  /**
   * Pages that become unavailable if a sequence starts, reuses what is cached of its first `blocksMax` blocks, and
   * grows.
   */
  pagesToRun(chain: BlockChain, blocksMax: number, growth: Growth, last?: LastMatch): number {
    const shared = this.match(chain, blocksMax, last);
    let pages = (growth.slotPages ?? 0) + this.#boundsFor(growth);
    for (const group of this.groups) {
      const first = group.firstAttended(shared * this.blockTokens);
      // Sharing a block that is referenced already costs no page.
      const used = group.usedOf(chain, first, shared);
      pages += group.layers * group.heldMax(first + used, growth);
    }
    return pages;
  }

  /** Pages that a sequence still lacks for its growth. */
  pagesMissing(table: BlockTable, growth: Growth): number {
    let pages = Math.max(0, this.#boundsFor(growth) - (table.bounds?.ids.length ?? 0));
    for (let g = 0; g < this.groups.length; g++) {
      const { first, blocks, inSlots } = table.groups[g];
      const { layers } = this.groups[g];
      if (inSlots) continue;
      pages += layers * Math.max(0, this.groups[g].heldMax(first, growth) - blocks.length);
    }
    return pages;
  }

  /** Pages with the bounds of all keys of a sequence. */
  #boundsFor({ tokens, boundLayers }: Growth): number {
    return boundLayers === undefined ? 0 : boundPages(blocksFor(tokens, this.blockTokens), boundLayers);
  }

  /** Pages of the table's blocks, slots and bounds. */
  pagesOf(table: BlockTable): number {
    const slots = (table.slots?.ids.length ?? 0) + (table.bounds?.ids.length ?? 0);
    return this.groups.reduce((sum, { layers }, g) => sum + layers * table.groups[g].blocks.length, slots);
  }

  /**
   * Appends the reusable prefix of the chain's first `blocksMax` blocks to an empty table, with a reference to each
   * block. Returns the number of blocks.
   */
  share(chain: BlockChain, blocksMax: number, table: BlockTable, last?: LastMatch): number {
    const shared = this.match(chain, blocksMax, last);
    this.#queue.tick(table.tenant);
    for (let g = 0; g < this.groups.length; g++) {
      const held = table.groups[g];
      held.first = this.groups[g].firstAttended(shared * this.blockTokens);
      this.groups[g].share(chain, held.first, shared, held);
    }
    return shared;
  }

  /**
   * Appends the local prefix of the chain's first `blocksMax` blocks to an empty table: blocks of device memory first,
   * then blocks loaded from host memory while the device has free pages, without those behind a window. Host memory keeps these blocks until
   * `lower.readEnded`. Blocks loaded for a `resumed` sequence do not count as hits. Returns the number of blocks.
   */
  loadPrefix(
    chain: BlockChain,
    blocksMax: number,
    table: BlockTable,
    { known, resumed }: { readonly known: LastMatch; readonly resumed: boolean },
  ): number {
    const { lower } = this;
    const from = this.share(chain, blocksMax, table, known);
    if (lower === undefined) return from;
    const inHost = lower.inHost(chain, from, blocksMax);
    lower.touch(chain, inHost);
    let end = from;
    while (end < inHost && this.allocate(table)) this.releaseBehindWindow(table, ++end * this.blockTokens);
    if (end > from) this.readHost(chain, from, end, table, resumed);
    return end;
  }

  /**
   * Loads the chain's blocks `from..to` from host memory, which must hold them, into the table's empty blocks. Host
   * memory keeps them until `lower.readEnded`.
   */
  readHost(chain: BlockChain, from: number, to: number, table: BlockTable, resumed: boolean): void {
    const { lower } = this;
    if (lower === undefined) throw new Error('Cannot read host memory: it holds no blocks');
    lower.read(chain, from, to, resumed);
    const blocks = Array.from({ length: lower.moves === undefined ? 0 : to - from }, (_, i) => from + i);
    const own = blocks.map((index) => this.all.heldIds(table, index));
    this.cacheBlocks(chain, from, to, table);
    // An equal block that was indexed before already has the contents.
    for (const [i, index] of blocks.entries()) {
      const held = this.all.heldIds(table, index);
      const loaded = held.map((id, g) => (own[i][g] === id ? id : undefined));
      lower.load(chain, index, loaded);
    }
  }

  /** Starts the loads of all blocks taken from host memory, before any later step. */
  flushLoads(): void {
    this.lower?.moves?.flush();
  }

  /**
   * Appends an empty block of every group to the table and evicts if necessary. False, with nothing appended, when too
   * many pages are in use.
   */
  allocate(table: BlockTable): boolean {
    const { bounds, slots } = table;
    const plain = slots === undefined && bounds === undefined;
    if (!this.makeFree(plain ? this.blockPages : this.#pagesOfNextBlock(table))) return false;
    for (let g = 0; g < this.groups.length; g++) this.groups[g].allocate(table.groups[g]);
    if (bounds !== undefined) this.bounds.grow(bounds, table.length);
    return true;
  }

  #pagesOfNextBlock(table: BlockTable): number {
    let pages = table.bounds?.missing(table.length + 1) ?? 0;
    for (let g = 0; g < this.groups.length; g++) if (!table.groups[g].inSlots) pages += this.groups[g].layers;
    return pages;
  }

  /** Allocates pages for the kept tokens of a sequence; false, with nothing allocated, when too many pages are in use. */
  allocateSlots(table: BlockTable, layout: SlotLayout): boolean {
    if (!this.makeFree(pagesOfLayout(layout))) return false;
    table.slots = this.slots.allocate(layout);
    return true;
  }

  /** Allocates pages for the bounds of the table's blocks; false, with nothing allocated, when too many are in use. */
  allocateBounds(table: BlockTable, layers: number): boolean {
    const bounds = new BoundPages(layers);
    if (!this.makeFree(bounds.missing(table.length))) return false;
    table.bounds = bounds;
    this.bounds.grow(bounds, table.length);
    return true;
  }

  /**
   * The sequence's prompt is selected: its slots replace its blocks in sparse layers. Indexed blocks stay cached.
   * @param dropped the prompt's blocks, which leave the cache unless another sequence has them; undefined: they stay
   */
  useSlots(table: BlockTable, promptTokens: number, dropped: BlockChain | undefined): void {
    table.slots?.select(promptTokens);
    this.#queue.tick(table.tenant);
    for (let g = 0; g < this.groups.length; g++) {
      if (!this.groups[g].isSparse) continue;
      const held = table.groups[g];
      const { length } = held.blocks;
      while (held.blocks.length > 0) this.groups[g].release(held.blocks.pop());
      held.first += length;
      held.inSlots = true;
      if (dropped === undefined) continue;
      const blocks = Math.min(length, dropped.blocks);
      for (let i = blocks - 1; i >= 0; i--) this.groups[g].evict(dropped.words, i * digestWords);
      this.lower?.invalidate(dropped, blocks);
    }
  }

  /**
   * Appends blocks until the table holds `tokens` tokens, and releases blocks behind a window immediately. The pages of
   * the blocks are exchanged for the received ones. False, with nothing changed, when pages are short.
   */
  adopt(table: BlockTable, tokens: number, received: ReceivedPrompt | undefined): boolean {
    if (this.pagesMissing(table, { tokens, rows: this.blockTokens }) > this.availablePages) return false;
    while (this.blocksMissing(table, tokens) > 0) {
      if (!this.allocate(table)) throw new Error('Block cache broken: available pages cannot be allocated');
      if (received !== undefined) this.takeReceived(table, table.length - 1, received);
      this.releaseBehindWindow(table, Math.min(tokens, table.length * this.blockTokens));
    }
    return true;
  }

  /**
   * The same for a prompt of which slots hold the kept tokens, whose table is empty. False, with the table empty again,
   * when pages are short.
   */
  adoptKept(table: BlockTable, promptTokens: number, tokens: number, received: ReceivedPrompt | undefined): boolean {
    this.useSlots(table, promptTokens, undefined);
    if (!this.adopt(table, tokens, received)) {
      this.release(table);
      return false;
    }
    if (table.slots !== undefined && received !== undefined)
      this.slots.exchange(table.slots, received.pages, received.layout.slotIndex(0));
    return true;
  }

  /** Pages of a received sequence of so many tokens. */
  pagesToAdopt(tokens: number, layout: SlotLayout): number {
    const blocks = blocksFor(tokens, this.blockTokens);
    return this.groups.reduce(
      (sum, { layers, isSparse }) => sum + (isSparse ? 0 : layers * blocks),
      pagesOfLayout(layout),
    );
  }

  /** Exchanges the pages of the table's empty blocks from `index` on for the pages received for them. */
  takeReceived(table: BlockTable, index: number, received: ReceivedPrompt): void {
    exchangeReceived(this.groups, table, index, received);
  }

  /** Evicts until `pages` pages are free. False, with nothing evicted, when too many are in use. */
  makeFree(pages: number): boolean {
    if (this.pages.free >= pages) return true;
    if (this.availablePages < pages) return false;
    while (this.pages.free < pages) this.#evictOne();
    return true;
  }

  /**
   * Indexes blocks `from..to` of the table, now computed. If an equal block is indexed already, because two sequences
   * computed it at the same time, the table takes that block and frees its own: equal digests mean equal bits. Returns
   * the first index where the table changed; infinite if none.
   */
  cacheBlocks(chain: BlockChain, from: number, to: number, table: BlockTable): number {
    this.#queue.tick(table.tenant);
    this.lower?.tick();
    let swapped = Number.POSITIVE_INFINITY;
    for (let g = 0; g < this.groups.length; g++)
      swapped = Math.min(swapped, this.groups[g].cacheBlocks(chain, from, to, table.groups[g]));
    this.lower?.storeRecorded();
    return swapped;
  }

  /** Releases the blocks that no row from `position` on attends to. */
  releaseBehindWindow(table: BlockTable, position: number): void {
    if (this.#windowed.length === 0) return;
    this.#queue.tick(table.tenant);
    for (let g = 0; g < this.groups.length; g++) {
      const held = table.groups[g];
      const behind = this.groups[g].firstAttended(position) - held.first;
      if (behind <= 0) continue;
      for (let i = 0; i < behind; i++) this.groups[g].release(held.blocks.at(i));
      held.blocks.shift(behind);
      held.first += behind;
    }
  }

  /**
   * Releases all blocks of the table. Indexed blocks stay cached; with `cold`, those that no other sequence has used
   * are evicted first.
   */
  release(table: BlockTable, cold = false): void {
    this.#queue.tick(table.tenant);
    for (let g = 0; g < this.groups.length; g++) {
      const held = table.groups[g];
      while (held.blocks.length > 0) this.groups[g].release(held.blocks.pop(), cold);
      held.first = 0;
      held.inSlots = false;
    }
    if (table.slots !== undefined) this.slots.release(table.slots);
    table.slots = undefined;
    if (table.bounds !== undefined) this.bounds.release(table.bounds);
    table.bounds = undefined;
  }

  /**
   * Removes the table's last blocks from the index, so that no other sequence can share them and they may move. Returns
   * the first private block in `stay..end`. The table must hold every block before `end`.
   */
  makePrivate(table: BlockTable, end: number, stay: number): number {
    return this.groups[0].makePrivate(table.groups[0], end, stay);
  }

  /** Frees `count` private blocks of the table from entry `index` on: their contents are now on another instance. */
  detach(table: BlockTable, index: number, count: number): void {
    const held = table.groups[0];
    for (let i = index; i < index + count; i++) this.groups[0].release(held.blocks.at(i));
    held.blocks.cut(index, count);
    held.first += count;
  }

  /** Drops the chain's first `blocks` blocks, which have suspect contents, unless they are in use. */
  invalidate(chain: BlockChain, blocks: number): void {
    for (let i = blocks - 1; i >= 0; i--) {
      for (const groups of [this.#windowed, this.#whole]) {
        for (const group of groups) group.evict(chain.words, i * digestWords);
      }
    }
    this.lower?.invalidate(chain, blocks);
  }

  /** Tokens of the longest sequence that the pages can hold; infinite where windows bound the blocks of a sequence. */
  get capacityTokens(): number {
    return this.#capacityTokens;
  }

  /** Uses the lowest `pages` pages from now on. The others must be free. */
  limitPages(pages: number): void {
    this.pages.limit(pages);
    this.#capacityTokens = this.#capacityOf(pages);
  }

  /** Evicts every block that is not in use: the memory of all contents is lost. */
  forget(): void {
    while (this.cachedPages > 0) this.#evictOne();
  }

  #evictOne(): void {
    const id = this.#queue.pop();
    if (id === undefined)
      throw new Error(`Block cache broken: ${this.cachedPages} pages are cached, none can be evicted`);
    let g = 0;
    while (id >= this.groups[g].end) g++;
    const group = this.groups[g];
    const block = id - group.offset;
    if (group.window === undefined) {
      for (const other of this.#windowed) if (group.evictSameDigest(block, other)) this.#evicted++;
    }
    group.drop(block);
    this.#evicted++;
  }

  /** The time of all changes until the next call. */
  enter(nowUs: number): void {
    this.ages.nowUs = nowUs;
    this.#queue.nowUs = nowUs;
    this.lower?.enter(nowUs);
  }

  /** Counts the changes of all that `#checkStructures` reads. */
  get #changes(): number {
    let changes =
      this.slots.changes +
      this.bounds.changes +
      this.receivePages.changes +
      (this.#lending?.changes ?? 0) +
      (this.lower?.changes ?? 0);
    for (const group of this.groups) changes += group.changes + group.pool.changes;
    return changes;
  }

  #checkStructures(): void {
    this.pages.check();
    const owners = new Int32Array(this.pages.ids);
    for (const group of this.groups) group.check(owners);
    this.slots.check(owners);
    this.bounds.check(owners);
    this.receivePages.check(owners);
    const released = this.#whole.filter(({ isSparse }) => !isSparse);
    for (const group of this.#windowed) for (const whole of released) group.checkSameDigests(whole);
    this.#lending?.check(owners);
    this.extraRows?.check(owners);
    this.lower?.checkSlots();
  }

  /** Throws unless every page is free or belongs to one block, and cached blocks can be evicted in some order. */
  check(): void {
    if (this.#checks.isDue(this.#changes)) this.#checkStructures();
    this.lower?.checkTransfers();
    const { cachedPages, lentPages, pages } = this;
    const usedPages = this.usedPages + (this.#lending?.localPages ?? 0);
    if (usedPages + cachedPages + lentPages + pages.free !== pages.total) {
      throw new Error(
        `Block cache broken: ${usedPages} pages used, ${cachedPages} cached, ${lentPages} lent, ${pages.free} free of ${pages.total}`,
      );
    }
  }
}

/** The result of the last `match` of one chain: exact until the cache changes, and a good first guess after that. */
export class LastMatch {
  /** Sum of `changes` over the layer groups at that time. */
  changes = -1;
  /** Limit of the lookup, and its result. */
  blocksMax = 0;
  blocks = 0;
}
