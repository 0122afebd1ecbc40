// The identity of a block: a 128-bit digest of its tokens, chained from everything else that its keys and values depend
// on.
import { blake2s128, digestWords } from '../../util/blake2s.ts';
import { pageTokens } from '../../util/step.ts';
import type { BlockChain } from '../protocol/kv-events.ts';

/** Everything except tokens that determines the bits of a block. Caches that differ in one field share no blocks. */
export interface BlockRoot {
  /** Identifies the weights: a digest of the model's files or headers. */
  readonly modelFingerprint: string;
  readonly weightForm: string;
  readonly inputForm: string;
  readonly kvType: string;
  /** Rope base, scaling and rotary dimensions, in any fixed spelling. */
  readonly rope: string;
  /** 1 for each layer with a KV budget, and 0 for the others; undefined: all layers are of one kind. */
  readonly sparseLayers?: string | undefined;
}

/** Increased when the layout or the arithmetic of blocks changes. */
const version = 2;

/** Code units, not UTF-8 bytes: equally unambiguous, without an encoder. */
function words(text: string): number[] {
  return [text.length, ...Array.from({ length: text.length }, (_, i) => text.charCodeAt(i))];
}

/**
 * The digest that the first blocks of a tenant chain from. Instances that exchange blocks must share the deployment's
 * `key` (four words); it may be all zero on one machine.
 */
export function rootDigest(root: BlockRoot, salt: string, key: Uint32Array): Uint32Array {
  const message = Int32Array.of(
    version,
    pageTokens,
    ...words(root.modelFingerprint),
    ...words(root.weightForm),
    ...words(root.inputForm),
    ...words(root.kvType),
    ...words(root.rope),
    ...(root.sparseLayers === undefined ? [] : words(root.sparseLayers)),
    ...words(salt),
  );
  const digest = new Uint32Array(digestWords);
  blake2s128(key, 0, message, 0, message.length, digest, 0);
  return digest;
}

/**
 * Digests of a sequence's full blocks, extended as tokens arrive: digest i is BLAKE2s-128 of the block's token ids
 * under digest i-1 as key. Takes about 1.5 us a block.
 */
export class HashChain implements BlockChain {
  readonly #root: Uint32Array;
  #words: Uint32Array;
  #blocks = 0;

  constructor(root: Uint32Array, blocksExpected = 8) {
    this.#root = root;
    this.#words = new Uint32Array(Math.max(1, blocksExpected) * digestWords);
  }

  get blocks(): number {
    return this.#blocks;
  }

  get words(): Uint32Array {
    return this.#words;
  }

  /** Hashes every full block within the first `length` of `tokens` that is not hashed yet. */
  extend(tokens: Int32Array, length: number): void {
    const blocks = Math.floor(length / pageTokens);
    if (blocks * digestWords > this.#words.length) {
      const grown = new Uint32Array(Math.max(blocks, this.#blocks * 2) * digestWords);
      grown.set(this.#words);
      this.#words = grown;
    }
    for (let block = this.#blocks; block < blocks; block++) {
      const key = block === 0 ? this.#root : this.#words;
      const keyAt = block === 0 ? 0 : (block - 1) * digestWords;
      const from = block * pageTokens;
      blake2s128(key, keyAt, tokens, from, from + pageTokens, this.#words, block * digestWords);
    }
    this.#blocks = Math.max(this.#blocks, blocks);
  }
}
