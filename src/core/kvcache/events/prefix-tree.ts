// Which prefixes prompts share: a radix tree over block hashes that counts prompts and hits, in bounded memory.
import { digestWords } from '../../../util/blake2s.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { SharedPrefix } from '../../protocol/ports.ts';

/** Runs of blocks, and their blocks in all: 1 MB of hashes. */
const nodesMax = 1_024;
const blocksMax = 65_536;
/** Blocks of a prompt that are recorded. */
const promptBlocksMax = 4_096;

/** A run of blocks, as rules that copy prefixes read and write it. */
export interface PrefixRun {
  readonly parent: PrefixRun | undefined;
  /** Blocks up to the end of the run, from the start of the prompt. */
  readonly end: number;
  /** Time that prompts have waited for want of a copy, as of `waitedAtUs`. */
  waitedUs: number;
  waitedAtUs: number;
}

/** A run of blocks behind those of its parent. */
interface Node extends PrefixRun {
  readonly id: number;
  parent: Node | undefined;
  /** (blocks, 4 words) */
  words: Uint32Array;
  depth: number;
  prompts: number;
  hitBlocks: number;
  lastUsedUs: number;
  /** By the first word of their first blocks. */
  children: Map<number, Node>;
}

const blocksOf = ({ words }: Node): number => words.length / digestWords;

/** A run splits where prompts diverge. The leaf that is unused for the longest time is dropped first. */
export class PrefixTree {
  readonly #root: Node = createNode(0, undefined, new Uint32Array(), 0);
  /** All but the root, in the order of their creation. */
  readonly #nodes = new Set<Node>();
  #blocks = 0;
  #created = 0;

  /** Counts a prompt. @param blocks full blocks of the prompt @param hits leading blocks that its instance had */
  add(nowUs: number, chain: BlockChain, blocks: number, hits: number): void {
    const end = Math.min(blocks, chain.blocks, promptBlocksMax);
    let node = this.#root;
    for (let at = 0; at < end; ) {
      const next = node.children.get(chain.words[at * digestWords]);
      if (next === undefined) {
        node = this.#createLeaf(node, chain.words.slice(at * digestWords, end * digestWords), at);
        this.#use(node, nowUs, hits);
        break;
      }
      const common = commonBlocks(next, chain.words, at, end);
      // The first words of different hashes are equal: the rest is not counted.
      if (common === 0) break;
      if (common < blocksOf(next)) this.#split(next, common);
      this.#use(next, nowUs, hits);
      node = next;
      at += common;
    }
    while (this.#nodes.size > nodesMax || this.#blocks > blocksMax) this.#dropOldestLeaf();
  }

  #use(node: Node, nowUs: number, hits: number): void {
    node.prompts++;
    node.lastUsedUs = nowUs;
    node.hitBlocks += Math.max(0, Math.min(blocksOf(node), hits - node.depth));
  }

  #createLeaf(parent: Node, words: Uint32Array, depth: number): Node {
    const node = createNode(++this.#created, parent, words, depth);
    parent.children.set(words[0], node);
    this.#nodes.add(node);
    this.#blocks += blocksOf(node);
    return node;
  }

  /** The runs of the chain's first `blocks` blocks, the longest last; the last one may end behind them. */
  path(chain: BlockChain, blocks: number): readonly PrefixRun[] {
    const end = Math.min(blocks, chain.blocks, promptBlocksMax);
    const runs: PrefixRun[] = [];
    let node = this.#root;
    for (let at = 0; at < end; at = node.end) {
      const next = node.children.get(chain.words[at * digestWords]);
      if (next === undefined || commonBlocks(next, chain.words, at, end) < Math.min(end - at, blocksOf(next))) break;
      runs.push(next);
      node = next;
    }
    return runs;
  }

  /** The node keeps its first `blocks` blocks; a new child has the others, and the counts of prompts that had them all. */
  #split(node: Node, blocks: number): void {
    const { words, children, depth, prompts, hitBlocks, lastUsedUs, waitedUs, waitedAtUs } = node;
    const rest = createNode(++this.#created, node, words.slice(blocks * digestWords), depth + blocks);
    const first = blocks / (words.length / digestWords);
    node.hitBlocks = Math.round(hitBlocks * first);
    Object.assign(rest, { prompts, lastUsedUs, hitBlocks: hitBlocks - node.hitBlocks, children, waitedUs, waitedAtUs });
    for (const child of children.values()) child.parent = rest;
    node.words = words.slice(0, blocks * digestWords);
    node.children = new Map([[rest.words[0], rest]]);
    this.#nodes.add(rest);
  }

  #dropOldestLeaf(): void {
    let oldest: Node | undefined;
    for (const node of this.#nodes)
      if (node.children.size === 0 && node.lastUsedUs < (oldest?.lastUsedUs ?? Number.POSITIVE_INFINITY)) oldest = node;
    if (oldest === undefined) throw new Error('Prefix tree broken: it has no leaf');
    oldest.parent?.children.delete(oldest.words[0]);
    this.#nodes.delete(oldest);
    this.#blocks -= blocksOf(oldest);
  }

  /** The runs that most prompts have, each behind its parent. @param holders number of instances with a block */
  shared(most: number, holders: (words: Uint32Array, at: number) => number): readonly SharedPrefix[] {
    const several = [...this.#nodes].filter(({ prompts }) => prompts > 1);
    // A child has no more prompts than its parent, which therefore comes first.
    several.sort((a, b) => b.prompts - a.prompts || a.depth - b.depth);
    return several.slice(0, most).map((node) => {
      const last = node.words.length - digestWords;
      const { id, parent, depth, prompts, hitBlocks, lastUsedUs } = node;
      return {
        ...{ id, parent: parent === this.#root ? undefined : parent?.id },
        hash: node.words[last].toString(16).padStart(8, '0'),
        ...{ depth, blocks: blocksOf(node), prompts, hitBlocks, lastUsedUs },
        holders: holders(node.words, last),
      };
    });
  }
}

function createNode(id: number, parent: Node | undefined, words: Uint32Array, depth: number): Node {
  return {
    ...{ id, parent, words, depth, prompts: 0, hitBlocks: 0, lastUsedUs: 0, children: new Map() },
    ...{ waitedUs: 0, waitedAtUs: 0 },
    get end() {
      return this.depth + blocksOf(this);
    },
  };
}

/** Blocks of the node that the chain has from block `at` on. */
function commonBlocks({ words }: Node, chain: Uint32Array, at: number, end: number): number {
  const most = Math.min(words.length, (end - at) * digestWords);
  let same = 0;
  while (same < most && words[same] === chain[at * digestWords + same]) same++;
  return Math.floor(same / digestWords);
}
