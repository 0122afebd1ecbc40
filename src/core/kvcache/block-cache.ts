// The KV memory of an instance as one store: sequences take blocks from it, share them and leave them behind.
import { digestWords } from '../../util/blake2s.ts';
import type { LayerGroup } from '../../util/step.ts';
import type { BlockChain } from '../protocol/kv-events.ts';
import { KnownPrefix } from './block-chain.ts';
import type { BlockTable } from './block-table.ts';
import type { TierListener } from './events/kv-event-log.ts';
import { type EvictionKind, EvictionQueue } from './eviction.ts';
import { GroupCache, type Growth } from './group-cache.ts';
import { blockPages, blocksFor, capacityTokens } from './layer-groups.ts';
import { LendingMemory } from './lending-memory.ts';
import { PagePool } from './page-pool.ts';
import { type ReceivedPrompt, ReceivePages, takeReceived } from './receive-pages.ts';
import { type HostRows, PageTableRows } from './remote-block-rows.ts';
import { LowerTiers, type LowerTiersConfig } from './tiers/lower-tiers.ts';
import { type TierMover, TierMoves } from './tiers/tier-moves.ts';

export interface TiersConfig extends Omit<LowerTiersConfig, 'eviction' | 'moves'> {
  /** Where contents are real: what moves them. The pool's pages behind all others are host memory's, slot by slot. */
  readonly mover?: TierMover | undefined;
}

export interface BlockCacheConfig {
  readonly pages: number;
  /** Tokens of a block, and so of a page. */
  readonly blockTokens: number;
  /** Layer groups of the model, one at least: they share the pages. */
  readonly groups: readonly LayerGroup[];
  readonly eviction: EvictionKind;
  /** Pages besides, where prompts computed elsewhere land. */
  readonly landingPages?: number | undefined;
  /** Where blocks are kept besides; for models of one layer group. */
  readonly tiers?: TiersConfig | undefined;
  /** Of the pages, what may be kept from sequences: 0 unless given. */
  readonly pinShare?: number | undefined;
  /** Blocks besides that a buffer holds, for contents that come home from other instances; undefined: none lie elsewhere. For models of one layer group. */
  readonly stagingBlocks?: number | undefined;
  /** Host memory for blocks of sequences, where contents are real. */
  readonly hostRows?: HostRows | undefined;
}

/**
 * Full blocks are indexed by their digests; a block that nobody uses stays as cache until its place is wanted.
 * A prefix can be reused where every block is known in groups without a window, and in the others those that its next row sees.
 * So a block of a group with a window goes when the one of the same digest without a window goes: it is of no use any more.
 */
export class BlockCache {
  readonly pages: PagePool;
  readonly landing: ReceivePages;
  readonly blockTokens: number;
  /** In the order of the model's groups. */
  readonly groups: readonly GroupCache[];
  /** Pages of one block of every group. */
  readonly blockPages: number;
  /** Tokens of the longest sequence that the pages hold: infinite where windows bound what it keeps. */
  readonly capacityTokens: number;
  /** Host memory and SSD below; undefined where what is evicted is gone. */
  readonly lower: LowerTiers | undefined;
  /** Where blocks lie that are at home, but in no table. Undefined where all are. */
  readonly outside: PageTableRows | undefined;
  readonly #whole: readonly GroupCache[];
  readonly #windowed: readonly GroupCache[];
  /** The group whose blocks stand for the prefixes that are held. */
  readonly #told: GroupCache;
  readonly #queue: EvictionQueue;
  /** Tables that no sequence has: those of blocks that are being loaded or sent. */
  readonly moving = new Set<BlockTable>();
  /** Tables of prefixes that are kept for a time. */
  readonly kept = new Set<BlockTable>();
  #lending: LendingMemory | undefined;
  #evicted = 0;

  constructor(config: BlockCacheConfig) {
    const {
      pages,
      blockTokens,
      groups,
      eviction,
      landingPages = 0,
      tiers,
      pinShare = 0,
      stagingBlocks,
      hostRows,
    } = config;
    this.blockTokens = blockTokens;
    this.blockPages = blockPages(groups);
    this.pages = new PagePool(pages, landingPages + (stagingBlocks ?? 0) * this.blockPages);
    this.landing = new ReceivePages(landingPages);
    this.capacityTokens = capacityTokens(groups, pages - Math.floor(pages * pinShare), blockTokens);
    const ends = [0];
    for (const { layers } of groups) ends.push(ends[ends.length - 1] + Math.floor(pages / layers));
    this.#queue = new EvictionQueue(ends[groups.length], eviction);
    const spareRows =
      stagingBlocks === undefined ? 0 : PageTableRows.rows(ends[groups.length], stagingBlocks, hostRows);
    this.groups = groups.map(
      (group, i) => new GroupCache(group, blockTokens, this.pages, this.#queue, ends[i], spareRows),
    );
    if (stagingBlocks !== undefined) this.outside = this.#outsideRows(stagingBlocks, landingPages, hostRows);
    this.#told = this.groups.find(({ window }) => window === undefined) ?? this.groups[0];
    this.#whole = this.groups.filter(({ window }) => window === undefined);
    this.#windowed = this.groups.filter(({ window }) => window !== undefined);
    if (tiers === undefined) return;
    if (groups.length > 1)
      throw new Error(`Cannot keep blocks in lower tiers: ${groups.length} layer groups share them`);
    const moves = tiers.mover && new TierMoves(this.#told.pool, this.pages.ids, tiers.mover);
    this.lower = new LowerTiers({ ...tiers, eviction, moves }, (words, at) => this.#told.holds(words, at));
    this.#told.journal = this.lower;
  }

  #outsideRows(stagingBlocks: number, firstPage: number, host: HostRows | undefined): PageTableRows {
    const [group, other] = this.groups;
    if (other === undefined && group.window === undefined)
      return new PageTableRows(group.pool, this.lending, stagingBlocks, firstPage, host);
    throw new Error('Cannot lend blocks: only models of one layer group without a window do');
  }

  /** Blocks still missing at the end of the table before `tokens` tokens have room. */
  missing(table: BlockTable, tokens: number): number {
    return Math.max(0, blocksFor(tokens, this.blockTokens) - table.length);
  }

  /** Blocks of all groups evicted so far. */
  get evicted(): number {
    return this.#evicted;
  }

  /** `journal` hears what is stored and dropped from now on, in all tiers: in the first group without a window, or else in the first. */
  tell(journal: TierListener | undefined): void {
    if (this.lower === undefined) this.#told.journal = journal;
    else this.lower.listener = journal;
  }

  /** Is the block of the digest at `words[at..at+4]` one that journals tell of as stored? */
  holds(words: Uint32Array, at: number): boolean {
    return this.#told.holds(words, at) || this.lower?.holds(words, at) === true;
  }

  /** (blocks, 4 words): digests of all blocks that journals tell of. */
  indexedDigests(): Uint32Array {
    const here = this.#told.indexedDigests();
    return this.lower === undefined ? here : this.lower.withBelow(here);
  }

  /** Pages that can be had without taking a block from a sequence. */
  get availablePages(): number {
    return this.pages.free + this.cachedPages;
  }

  get usedPages(): number {
    let pages = 0;
    for (let g = 0; g < this.groups.length; g++) pages += this.groups[g].pool.usedPages;
    return pages;
  }

  get cachedPages(): number {
    let pages = 0;
    for (let g = 0; g < this.groups.length; g++) pages += this.groups[g].pool.cachedPages;
    return pages;
  }

  /** Pages of blocks that other instances hold. */
  get lentPages(): number {
    return this.#lending?.lentPages ?? 0;
  }

  /** Blocks handed out one by one from the same pages, one block having the pages of every group's: what is lent is taken here. */
  get lending(): LendingMemory {
    this.#lending ??= new LendingMemory(this);
    return this.#lending;
  }

  /**
   * Blocks of the longest prefix of the chain, at most `blocksMax`, that can be reused. Pins nothing: valid until the next allocation.
   * Whoever asks again about a chain passes what this cache said `last`: that makes the answer cheap.
   */
  match(chain: BlockChain, blocksMax: number, last = new KnownPrefix()): number {
    const asked = Math.min(blocksMax, chain.blocks);
    let changes = 0;
    for (let g = 0; g < this.groups.length; g++) changes += this.groups[g].changes;
    if (last.changes === changes && last.asked === asked) return last.blocks;
    let blocks = asked;
    for (let g = 0; g < this.#whole.length; g++) blocks = this.#whole[g].knownPrefix(chain, blocks, last.blocks);
    // What one window cuts off may uncover another.
    let before: number;
    do {
      before = blocks;
      for (let g = 0; g < this.#windowed.length; g++) blocks = this.#windowed[g].coveredTo(chain, blocks);
    } while (blocks < before);
    last.changes = changes;
    last.asked = asked;
    last.blocks = blocks;
    return blocks;
  }

  /** Pages that would be available no more if a sequence came, reused what it can of its first `blocksMax` blocks, and grew. */
  pagesToRun(chain: BlockChain, blocksMax: number, growth: Growth, last?: KnownPrefix): number {
    const shared = this.match(chain, blocksMax, last);
    let pages = 0;
    for (const group of this.groups) {
      const first = group.firstSeen(shared * this.blockTokens);
      // A block that others hold costs nothing, as long as this one stands in it.
      const used = group.usedOf(chain, first, shared);
      pages += group.layers * group.heldMax(first + used, growth);
    }
    return pages;
  }

  /** Pages that a sequence still lacks for its growth. */
  pagesMissing(table: BlockTable, growth: Growth): number {
    let pages = 0;
    for (let g = 0; g < this.groups.length; g++) {
      const { first, blocks } = table.groups[g];
      const { layers } = this.groups[g];
      pages += layers * Math.max(0, this.groups[g].heldMax(first, growth) - blocks.length);
    }
    return pages;
  }

  /** Pages of the table's blocks. */
  pagesOf(table: BlockTable): number {
    return this.groups.reduce((sum, { layers }, g) => sum + layers * table.groups[g].blocks.length, 0);
  }

  /** Gives an empty table what can be reused of the chain's first `blocksMax` blocks, pinned. Returns how many blocks the sequence has behind it. */
  share(chain: BlockChain, blocksMax: number, table: BlockTable, last?: KnownPrefix): number {
    const shared = this.match(chain, blocksMax, last);
    this.#queue.tick();
    for (let g = 0; g < this.groups.length; g++) {
      const held = table.groups[g];
      held.first = this.groups[g].firstSeen(shared * this.blockTokens);
      this.groups[g].share(chain, held.first, shared, held);
    }
    return shared;
  }

  /**
   * Gives an empty table what is here of the chain's first `blocksMax` blocks: what the device has, then what host memory has, as far as there is
   * room on the device. Pinned there until `lower.readEnded`. What a sequence takes `again` is no hit. Returns how many blocks it has behind it.
   */
  take(
    chain: BlockChain,
    blocksMax: number,
    table: BlockTable,
    { known, again }: { readonly known: KnownPrefix; readonly again: boolean },
  ): number {
    const { lower } = this;
    const from = this.share(chain, blocksMax, table, known);
    if (lower === undefined) return from;
    const inHost = lower.inHost(chain, from, blocksMax);
    lower.touch(chain, inHost);
    let end = from;
    while (end < inHost && this.allocate(table)) end++;
    if (end > from) this.readHost(chain, from, end, table, again);
    return end;
  }

  /** The table's blocks `from..to` of the chain, which nothing is in, take in what host memory has, which must have them. Pinned there until `lower.readEnded`. */
  readHost(chain: BlockChain, from: number, to: number, table: BlockTable, again: boolean): void {
    const { lower } = this;
    if (lower === undefined) throw new Error('Cannot read host memory: it holds no blocks');
    lower.read(chain, from, to, again);
    const own = lower.moves && Int32Array.from({ length: to - from }, (_, i) => table.groups[0].blocks.at(from + i));
    this.commit(chain, from, to, table);
    // An equal block that was known has its contents.
    for (const [i, block] of own?.entries() ?? [])
      if (table.groups[0].blocks.at(from + i) === block) lower.load(chain, from + i, block);
  }

  /** Where contents are real: those of blocks that have been taken from host memory are on their way before anything that comes after. */
  flushLoads(): void {
    this.lower?.moves?.flush((block, digest) => this.#told.names(block, digest));
  }

  /** Appends an empty block of every group to the table, evicting if need be; false, and none appended, when too much is in use. */
  allocate(table: BlockTable): boolean {
    if (!this.makeFree(this.blockPages)) return false;
    for (let g = 0; g < this.groups.length; g++) this.groups[g].allocate(table.groups[g]);
    return true;
  }

  /**
   * Appends blocks until `tokens` tokens have room, and gives back at once what lies behind a window. Blocks take in the pages that have
   * landed for them, and leave theirs in exchange. False, and nothing changed, when pages are short.
   */
  adopt(table: BlockTable, tokens: number, landed: ReceivedPrompt | undefined): boolean {
    if (this.pagesMissing(table, { tokens, rows: this.blockTokens }) > this.availablePages) return false;
    while (this.missing(table, tokens) > 0) {
      if (!this.allocate(table)) throw new Error('Block cache broken: pages that were there cannot be had');
      if (landed !== undefined) this.takeLanded(table, table.length - 1, landed);
      this.leaveBehind(table, Math.min(tokens, table.length * this.blockTokens));
    }
    return true;
  }

  /** The table's blocks from `index` on, which nothing is in, take in the pages that have landed for them. */
  takeLanded(table: BlockTable, index: number, landed: ReceivedPrompt): void {
    takeReceived(this.groups, table, index, landed);
  }

  /** Evicts until so many pages are free; false, and nothing evicted, when too much is in use. */
  makeFree(pages: number): boolean {
    if (this.pages.free >= pages) return true;
    if (this.availablePages < pages) return false;
    while (this.pages.free < pages) this.#evictOne();
    return true;
  }

  /**
   * Indexes blocks `from..to` of the table, now computed. Where an equal block is known already (two sequences computed it at the same time),
   * the table takes that one and frees its own: equal digests mean equal bits. Returns the first index where a table did; infinite: none.
   */
  commit(chain: BlockChain, from: number, to: number, table: BlockTable): number {
    this.#queue.tick();
    this.lower?.tick();
    let swapped = Number.POSITIVE_INFINITY;
    for (let g = 0; g < this.groups.length; g++)
      swapped = Math.min(swapped, this.groups[g].commit(chain, from, to, table.groups[g]));
    return swapped;
  }

  /** Releases the blocks that no row from `position` on sees. */
  leaveBehind(table: BlockTable, position: number): void {
    if (this.#windowed.length === 0) return;
    this.#queue.tick();
    for (let g = 0; g < this.groups.length; g++) {
      const held = table.groups[g];
      const gone = this.groups[g].firstSeen(position) - held.first;
      if (gone <= 0) continue;
      for (let i = 0; i < gone; i++) this.groups[g].release(held.blocks.at(i));
      held.blocks.shift(gone);
      held.first += gone;
    }
  }

  /** Takes all blocks from the table. Indexed ones stay as cache; with `cold`, those that nobody else has used go first. */
  release(table: BlockTable, cold = false): void {
    this.#queue.tick();
    for (let g = 0; g < this.groups.length; g++) {
      const held = table.groups[g];
      while (held.blocks.length > 0) this.groups[g].release(held.blocks.pop(), cold);
      held.first = 0;
    }
  }

  /** Nobody is to share the table's blocks from some point on: they may move. Returns the first that is its own, of `stay..end`. While the table holds all blocks before `end`. */
  disown(table: BlockTable, end: number, stay: number): number {
    return this.groups[0].disown(table.groups[0], end, stay);
  }

  /** Frees `count` blocks of the table, which nobody else knows, from entry `index` on: their contents lie elsewhere now. */
  takeOut(table: BlockTable, index: number, count: number): void {
    const held = table.groups[0];
    for (let i = index; i < index + count; i++) this.groups[0].release(held.blocks.at(i));
    held.blocks.cut(index, count);
    held.first += count;
  }

  /** Drops the chain's first `blocks` blocks, whose contents are suspect, as far as nobody needs them. */
  forget(chain: BlockChain, blocks: number): void {
    for (let i = blocks - 1; i >= 0; i--) {
      for (const groups of [this.#windowed, this.#whole]) {
        for (const group of groups) group.forget(chain.words, i * digestWords);
      }
    }
    this.lower?.forget(chain, blocks);
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
      for (const other of this.#windowed) if (group.forgetBeside(block, other)) this.#evicted++;
    }
    group.drop(block);
    this.#evicted++;
  }

  /** Throws unless every page belongs to one block or is free, and cached blocks can be evicted in some order. */
  check(): void {
    this.pages.check();
    const owners = new Int32Array(this.pages.ids);
    for (const group of this.groups) group.check(owners);
    this.landing.check(owners);
    for (const group of this.#windowed) for (const whole of this.#whole) group.checkBeside(whole);
    this.#lending?.check(owners);
    this.outside?.check(owners);
    this.lower?.check();
    const { cachedPages, lentPages, pages } = this;
    const usedPages = this.usedPages + (this.#lending?.localPages ?? 0);
    if (usedPages + cachedPages + lentPages + pages.free !== pages.total) {
      throw new Error(
        `Block cache broken: ${usedPages} pages used, ${cachedPages} cached, ${lentPages} lent, ${pages.free} free of ${pages.total}`,
      );
    }
  }
}
