// The blocks that instances hold as KV events with token ids: what routers of other projects index.
import { digestWords } from '../../util/blake2s.ts';
import { Int32List } from '../../util/int32-list.ts';
import { pageTokens } from '../../util/step.ts';
import { HashChain } from '../kvcache/block-hash.ts';
import { type HeldBlocksListener, type HeldIn, heldIn } from '../kvcache/events/prefix-index.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { EngineKvEvent, EngineMedium } from './engine-kv-event.ts';

/** Blocks whose tokens are kept although no instance holds them yet, or any more. */
const unheldMax = 2 ** 15;

const media: Readonly<Record<Exclude<HeldIn, 0>, EngineMedium>> = { [heldIn.memory]: 'device', [heldIn.ssd]: 'disk' };

/** What a digest stands for. */
interface BlockContent {
  /** The block before it; undefined: it is the first one of its sequences. */
  readonly parent: bigint | undefined;
  /** (pageTokens) */
  readonly tokens: Int32Array;
  /** The salt of a first block. */
  readonly salt: string;
}

interface Block {
  readonly hash: bigint;
  content: BlockContent | undefined;
  held: HeldIn;
  published: HeldIn;
  /** Held blocks that are published after this one. */
  waiting: Set<Block> | undefined;
}

/** The sequence of a running request. */
interface Sequence {
  readonly tokens: Int32List;
  readonly chain: HashChain;
  readonly salt: string;
  readonly promptTokens: number;
  /** Blocks of the chain that are known. */
  known: number;
}

/**
 * Instances report digests. The tokens behind a digest are those of the prompts and outputs that pass through the
 * conductor: a held block is published once they are known, and after the block before it.
 *
 * All instances together count as one engine: a block is held while one of them holds it.
 */
export class PublishedBlocks implements HeldBlocksListener {
  readonly #onChange: () => void;
  readonly #blocks = new Map<bigint, Block>();
  /** Blocks without a holder, the longest unused first. */
  readonly #unheld = new Set<Block>();
  /** Blocks to publish or to withdraw. */
  readonly #changed = new Set<Block>();
  readonly #sequences = new Map<RequestId, Sequence>();
  #published = 0;

  /** @param onChange events may be taken */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
  }

  /** Blocks that are published. */
  get size(): number {
    return this.#published;
  }

  /** An attempt of a request begins. @param root digest that its blocks chain from */
  begun(id: RequestId, root: Uint32Array, salt: string, prompt: Int32Array, resumed?: Int32Array): void {
    const tokens = Int32List.from(prompt, (resumed?.length ?? 0) + pageTokens);
    const sequence = { tokens, chain: new HashChain(root), salt, promptTokens: prompt.length, known: 0 };
    if (resumed !== undefined) tokens.append(resumed, 0, resumed.length);
    this.#sequences.set(id, sequence);
    this.#learn(sequence);
  }

  /** @param at number of output tokens before these; undefined: they follow the earlier ones */
  generated(id: RequestId, tokens: Int32Array, at?: number): void {
    const sequence = this.#sequences.get(id);
    if (sequence === undefined) return;
    const before = sequence.tokens.length - sequence.promptTokens;
    if (at !== undefined && at < before) return;
    // Tokens are lost: those behind them are unknown.
    if (at !== undefined && at > before) this.#sequences.delete(id);
    else {
      sequence.tokens.append(tokens, 0, tokens.length);
      this.#learn(sequence);
    }
  }

  /** The attempt has ended. */
  ended(id: RequestId): void {
    this.#sequences.delete(id);
  }

  changed(words: Uint32Array, at: number, held: HeldIn): void {
    const hash = hashAt(words, at);
    const known = this.#blocks.get(hash);
    if (known === undefined && held === heldIn.nothing) return;
    const block = known ?? this.#add(hash);
    block.held = held;
    // The next `take` is later: until then no other block may push this one out.
    if (held !== heldIn.nothing) this.#unheld.delete(block);
    this.#change(block);
  }

  /** The events since the last call: a block that was removed and stored meanwhile has none. */
  take(): readonly EngineKvEvent[] {
    const changed = [...this.#changed];
    this.#changed.clear();
    const events = new EventList();
    const withdrawn: Block[] = [];
    for (const block of changed) {
      if (block.held === block.published) continue;
      if (block.held === heldIn.nothing) withdrawn.push(block);
      else this.#publish(block, events);
    }
    for (const block of withdrawn) {
      events.removed(block, block.published);
      block.published = heldIn.nothing;
      this.#published--;
    }
    if (withdrawn.length > 0 && this.#published === 0) events.cleared();
    for (const block of changed) this.#keep(block);
    return events.all;
  }

  #learn(sequence: Sequence): void {
    const { tokens, chain, salt } = sequence;
    chain.extend(tokens.raw, tokens.length);
    const { words } = chain;
    for (; sequence.known < chain.blocks; sequence.known++) {
      const index = sequence.known;
      const hash = hashAt(words, index * digestWords);
      const block = this.#blocks.get(hash) ?? this.#add(hash);
      block.content ??= {
        parent: index === 0 ? undefined : hashAt(words, (index - 1) * digestWords),
        tokens: tokens.raw.slice(index * pageTokens, (index + 1) * pageTokens),
        salt: index === 0 ? salt : '',
      };
      if (block.held === block.published) this.#keep(block);
      else this.#change(block);
    }
  }

  #add(hash: bigint): Block {
    const block: Block = {
      ...{ hash, content: undefined, waiting: undefined },
      ...{ held: heldIn.nothing, published: heldIn.nothing },
    };
    this.#blocks.set(hash, block);
    return block;
  }

  #change(block: Block): void {
    this.#changed.add(block);
    this.#onChange();
  }

  /** With the blocks before it, and those that have waited for it. */
  #publish(block: Block, events: EventList): void {
    const first = this.#firstToPublish(block);
    const stack = first === undefined ? [] : [first];
    for (let next = stack.pop(); next !== undefined; next = stack.pop()) {
      const { held, published, content } = next;
      if (held === heldIn.nothing || held === published || content === undefined) continue;
      if (published === heldIn.nothing) this.#published++;
      events.stored(next, content, held);
      if (published !== heldIn.nothing) events.removed(next, published);
      next.published = held;
      stack.push(...(next.waiting ?? []));
      next.waiting = undefined;
    }
  }

  /** The first unpublished block of a run that ends in this one; undefined: it waits for a block that is not held. */
  #firstToPublish(block: Block): Block | undefined {
    let first = block;
    while (first.content?.parent !== undefined) {
      const before = this.#blocks.get(first.content.parent);
      // The tokens of the missing block return with the next prompt that has it.
      if (before === undefined) return undefined;
      if (before.published !== heldIn.nothing) return first;
      before.waiting ??= new Set();
      before.waiting.add(first);
      if (before.held === heldIn.nothing) return undefined;
      first = before;
    }
    return first.content === undefined ? undefined : first;
  }

  /** A block without a holder is forgotten at once if its tokens are unknown, else after `unheldMax` later ones. */
  #keep(block: Block): void {
    this.#unheld.delete(block);
    if (block.held !== heldIn.nothing || this.#blocks.get(block.hash) !== block) return;
    if (block.content === undefined) {
      this.#blocks.delete(block.hash);
      return;
    }
    this.#unheld.add(block);
    if (this.#unheld.size <= unheldMax) return;
    const [oldest] = this.#unheld;
    this.#unheld.delete(oldest);
    this.#blocks.delete(oldest.hash);
  }
}

type Stored = Extract<EngineKvEvent, { kind: 'stored' }>;

/** Joins the events of consecutive blocks. */
class EventList {
  readonly #stored: { readonly blocks: Block[]; readonly contents: BlockContent[]; readonly medium: EngineMedium }[] =
    [];
  readonly #removed = new Map<EngineMedium, bigint[]>();
  #isCleared = false;

  stored(block: Block, content: BlockContent, held: Exclude<HeldIn, 0>): void {
    const medium = media[held];
    const last = this.#stored.at(-1);
    if (last?.medium === medium && content.parent === last.blocks.at(-1)?.hash) {
      last.blocks.push(block);
      last.contents.push(content);
    } else this.#stored.push({ blocks: [block], contents: [content], medium });
  }

  removed({ hash }: Block, from: HeldIn): void {
    if (from === heldIn.nothing) return;
    const hashes = this.#removed.get(media[from]) ?? [];
    this.#removed.set(media[from], hashes);
    hashes.push(hash);
  }

  cleared(): void {
    this.#isCleared = true;
  }

  /** A block that moves to another medium is stored there before it is removed. */
  get all(): readonly EngineKvEvent[] {
    const stored = this.#stored.map(({ blocks, contents, medium }): Stored => {
      const tokens = new Int32Array(contents.length * pageTokens);
      for (const [i, content] of contents.entries()) tokens.set(content.tokens, i * pageTokens);
      return {
        ...{ kind: 'stored', hashes: blocks.map(({ hash }) => hash), parent: contents[0].parent },
        ...{ tokens, blockTokens: pageTokens, medium },
        ...(contents[0].salt !== '' && { extraKeys: contents.map(({ salt }) => salt) }),
      };
    });
    const removed = [...this.#removed].map(([medium, hashes]) => ({ kind: 'removed', hashes, medium }) as const);
    return [...stored, ...removed, ...(this.#isCleared ? [{ kind: 'cleared' } as const] : [])];
  }
}

/** Half of a digest: engines name blocks by 64 bits. */
function hashAt(words: Uint32Array, at: number): bigint {
  return (BigInt(words[at]) << 32n) | BigInt(words[at + 1]);
}
