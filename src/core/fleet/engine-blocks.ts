// The blocks that an external engine holds, translated from its own hashes into the digests of the prefix index.
import { blake2s128, digestWords } from '../../util/blake2s.ts';
import { pageTokens } from '../../util/step.ts';
import { type BlockRoot, rootDigest } from '../kvcache/block-hash.ts';
import { KvEventLog } from '../kvcache/events/kv-event-log.ts';
import type { KvEventBatch, KvSnapshot } from '../protocol/kv-events.ts';
import type { EngineBlockHash, EngineKvEvent, EngineMedium } from './engine-kv-event.ts';

/** The bits of a medium in `EngineBlock.media`. */
const mediumBits: Readonly<Record<EngineMedium, number>> = { device: 1, host: 2, disk: 4, remote: 8 };
const inMemory = mediumBits.device | mediumBits.host;

interface EngineBlock {
  /** The last digest up to the end of the block: that of a full page of tokens, or the root. */
  readonly digest: Uint32Array;
  /** Tokens behind that digest, fewer than a page. */
  readonly rest: Int32Array;
  /** (pages that end in this block, 4 words): their digests. */
  readonly pages: Uint32Array;
  readonly blockTokens: number;
  media: number;
  /** Undefined: not kept. */
  readonly source: BlockSource | undefined;
}

/** What a block was computed from, as its event states it. */
interface BlockSource {
  readonly parent: EngineBlockHash | undefined;
  readonly tokens: Int32Array;
  readonly extraKey: string;
}

/** Blocks of one stored event of `storedEvents`. */
const blocksPerEvent = 64;

export interface EngineBlocksConfig {
  readonly root: BlockRoot;
  /** Four words that key the digests, as those of prompts. */
  readonly hashKey: Uint32Array;
  /** Of the instance in the prefix index. */
  readonly incarnation: number;
  /** With more blocks than that all are dropped; none unless given. */
  readonly blocksMax?: number | undefined;
  /** Tokens of blocks are kept for `storedEvents`: 4 bytes each. */
  readonly keepsTokens?: boolean | undefined;
}

/**
 * The index counts in pages of `pageTokens` tokens, an engine in blocks of any size: a page counts as held while the
 * engine holds the block that the page ends in. Blocks of unknown parents are ignored, since their digests are unknown.
 */
export class EngineBlocks {
  readonly #root: BlockRoot;
  readonly #hashKey: Uint32Array;
  readonly #blocks = new Map<EngineBlockHash, EngineBlock>();
  readonly #log: KvEventLog;
  readonly #blocksMax: number;
  readonly #keepsTokens: boolean;
  #unknownParents = 0;
  #deviceTokens = 0;

  constructor({
    root,
    hashKey,
    incarnation,
    blocksMax = Number.POSITIVE_INFINITY,
    keepsTokens = false,
  }: EngineBlocksConfig) {
    this.#blocksMax = blocksMax;
    this.#keepsTokens = keepsTokens;
    this.#root = root;
    this.#hashKey = hashKey;
    this.#log = new KvEventLog(incarnation);
  }

  /** Blocks of the engine that are known. */
  get size(): number {
    return this.#blocks.size;
  }

  /** Tokens in those of them that are in device memory. */
  get deviceTokens(): number {
    return this.#deviceTokens;
  }

  /** Events that stored blocks behind an unknown one. */
  get unknownParents(): number {
    return this.#unknownParents;
  }

  /** False: the engine has reported more blocks than the limit, and all are dropped. */
  apply(events: readonly EngineKvEvent[]): boolean {
    let fits = true;
    for (const event of events) {
      if (event.kind === 'stored') this.#store(event);
      else if (event.kind === 'removed') this.#remove(event.hashes, mediumBits[event.medium]);
      else this.clear();
      if (this.#blocks.size <= this.#blocksMax) continue;
      this.clear();
      fits = false;
    }
    return fits;
  }

  /** The changes since the last batch; undefined: none. Its arrays are valid until the next change. */
  takeBatch(): KvEventBatch | undefined {
    return this.#log.changes === 0 ? undefined : this.#log.take();
  }

  /** All held pages. Untaken changes are part of it, and are not reported again. */
  snapshot(): KvSnapshot {
    if (this.#log.changes > 0) this.#log.take();
    const held = [...this.#blocks.values()];
    const memory = held.filter(({ media }) => (media & inMemory) !== 0);
    const below = held.filter(({ media }) => (media & inMemory) === 0);
    const words = Uint32Array.from([...memory, ...below].flatMap(({ pages }) => [...pages]));
    return this.#log.snapshot(
      words,
      below.reduce((sum, { pages }) => sum + pages.length / digestWords, 0),
    );
  }

  /**
   * The events that store all blocks again, a block after the one before it. Blocks behind one that is not held are left
   * out, since no event can state their prefix. Later changes do not affect the events. Requires `keepsTokens`.
   */
  storedEvents(): Iterable<EngineKvEvent> {
    const media = new Map([...this.#blocks].map(([hash, block]) => [hash, block.media]));
    return eventsOf(this.#inOrder(), media);
  }

  #inOrder(): readonly (readonly [EngineBlockHash, BlockSource])[] {
    const ordered = new Map<EngineBlockHash, BlockSource>();
    const leftOut = new Set<EngineBlockHash>();
    for (const [last] of this.#blocks) {
      const chain: [EngineBlockHash, BlockSource][] = [];
      let hash: EngineBlockHash | undefined = last;
      while (hash !== undefined && !ordered.has(hash)) {
        const source: BlockSource | undefined = leftOut.has(hash) ? undefined : this.#blocks.get(hash)?.source;
        // An engine that states false parents may lead a chain back to itself.
        if (source === undefined || chain.length > this.#blocks.size) break;
        chain.push([hash, source]);
        hash = source.parent;
      }
      const isWhole = hash === undefined || ordered.has(hash);
      for (const [own, source] of chain.reverse())
        if (isWhole) ordered.set(own, source);
        else leftOut.add(own);
    }
    return [...ordered];
  }

  /** The engine holds no block. */
  clear(): void {
    for (const block of this.#blocks.values()) this.#setMedia(block, 0);
    this.#blocks.clear();
  }

  #store({ hashes, parent, tokens, blockTokens, medium, extraKeys }: Extract<EngineKvEvent, { kind: 'stored' }>): void {
    let before: EngineBlock | undefined;
    if (parent !== undefined) {
      before = this.#blocks.get(parent);
      if (before === undefined && !this.#blocks.has(hashes[0])) {
        this.#unknownParents++;
        return;
      }
    }
    for (const [i, hash] of hashes.entries()) {
      let block = this.#blocks.get(hash);
      if (block === undefined) {
        const own = tokens.subarray(i * blockTokens, (i + 1) * blockTokens);
        const extraKey = extraKeys?.[i] ?? '';
        // A copy: a part of the event's array would keep the tokens of all its blocks.
        const source = this.#keepsTokens
          ? { parent: i === 0 ? parent : hashes[i - 1], tokens: own.slice(), extraKey }
          : undefined;
        block = this.#append(before, own, extraKey, source);
        this.#blocks.set(hash, block);
      }
      this.#setMedia(block, block.media | mediumBits[medium]);
      before = block;
    }
  }

  /** Extra keys behind the first block start a chain of their own: no prompt of token ids has them. */
  #append(
    before: EngineBlock | undefined,
    own: Int32Array,
    extraKey: string,
    source: BlockSource | undefined,
  ): EngineBlock {
    const isFirst = before === undefined || extraKey !== '';
    let digest = isFirst ? rootDigest(this.#root, extraKey, this.#hashKey) : before.digest;
    const earlier = isFirst ? 0 : before.rest.length;
    const tokens = new Int32Array(earlier + own.length);
    if (!isFirst) tokens.set(before.rest);
    tokens.set(own, earlier);
    const count = Math.floor(tokens.length / pageTokens);
    const pages = new Uint32Array(count * digestWords);
    for (let page = 0; page < count; page++) {
      const from = page * pageTokens;
      blake2s128(digest, 0, tokens, from, from + pageTokens, pages, page * digestWords);
      digest = pages.slice(page * digestWords, (page + 1) * digestWords);
    }
    return { digest, rest: tokens.slice(count * pageTokens), pages, blockTokens: own.length, media: 0, source };
  }

  #remove(hashes: readonly EngineBlockHash[], bit: number): void {
    for (const hash of hashes) {
      const block = this.#blocks.get(hash);
      if (block === undefined) continue;
      this.#setMedia(block, block.media & ~bit);
      if (block.media === 0) this.#blocks.delete(hash);
    }
  }

  #setMedia(block: EngineBlock, media: number): void {
    const wasOnDevice = (block.media & mediumBits.device) !== 0;
    const isOnDevice = (media & mediumBits.device) !== 0;
    this.#deviceTokens += block.blockTokens * (Number(isOnDevice) - Number(wasOnDevice));
    const [was, is] = [block.media, media].map((each) => ((each & inMemory) !== 0 ? 2 : Number(each !== 0)));
    block.media = media;
    if (was === is) return;
    for (let at = 0; at < block.pages.length; at += digestWords) {
      if (is === 1) this.#log.setSsdOnly(block.pages, at, true);
      else this.#log.record(block.pages, at, is === 2);
    }
  }
}

/** @param ordered blocks that follow each other share an event @param media the bits of each block */
function* eventsOf(
  ordered: readonly (readonly [EngineBlockHash, BlockSource])[],
  media: ReadonlyMap<EngineBlockHash, number>,
): Generator<EngineKvEvent> {
  for (let from = 0; from < ordered.length; ) {
    const [first, { parent, tokens }] = ordered[from];
    const bits = media.get(first) ?? 0;
    let to = from + 1;
    while (
      to < Math.min(ordered.length, from + blocksPerEvent) &&
      ordered[to][1].parent === ordered[to - 1][0] &&
      ordered[to][1].tokens.length === tokens.length &&
      media.get(ordered[to][0]) === bits
    )
      to++;
    const run = ordered.slice(from, to);
    const joined = new Int32Array(run.length * tokens.length);
    for (const [i, [, source]] of run.entries()) joined.set(source.tokens, i * tokens.length);
    for (const [medium, bit] of Object.entries(mediumBits) as [EngineMedium, number][]) {
      if ((bits & bit) === 0) continue;
      yield {
        ...{ kind: 'stored', hashes: run.map(([hash]) => hash), parent, tokens: joined, medium },
        ...{ blockTokens: tokens.length, extraKeys: run.map(([, { extraKey }]) => extraKey) },
      };
    }
    from = to;
  }
}
