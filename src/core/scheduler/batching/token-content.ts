// The content of a sequence with real tokens: token ids, and the digests computed from them.
import { Int32List } from '../../../util/int32-list.ts';
import { pageTokens } from '../../../util/step.ts';
import { HashChain } from '../../kvcache/block-hash.ts';
import type { SequenceContent } from './sequence.ts';

export class TokenContent implements SequenceContent {
  /** Prompt, then output. */
  readonly tokens: Int32List;
  readonly chain: HashChain;

  /** @param root digest that the blocks chain from (model and tenant) */
  constructor(prompt: Int32Array, root: Uint32Array) {
    this.tokens = Int32List.from(prompt, pageTokens);
    this.chain = new HashChain(root, Math.ceil(prompt.length / pageTokens) + 1);
    this.digest(prompt.length);
  }

  get length(): number {
    return this.tokens.length;
  }

  digest(length: number): void {
    this.chain.extend(this.tokens.raw, length);
  }
}
