// The prefixes that come to an instance and leave it: what its peers and its driver tell it about them.
import type { BlockCache } from '../policy/blocks/block-cache.ts';
import { digestWords } from '../util/blake2s.ts';
import type { Push } from './hand-offs.ts';
import type { InstanceIndex, PrefixFetch, PrefixMessage } from './messages.ts';
import { type LoadPart, PrefixLoads } from './prefix-loads.ts';
import { PrefixSends } from './prefix-sends.ts';
import type { Served } from './work.ts';

/** The instance, as what moves sees it. */
interface Owner<Request> {
  readonly push: Push<Request>;
  readonly spares: (pages: number) => boolean;
}

export class PrefixMoves<Request, S extends Served> {
  readonly loads: PrefixLoads<S>;
  readonly sends: PrefixSends;
  readonly #push: Push<Request>;

  constructor(cache: BlockCache, { push, spares }: Owner<Request>) {
    this.#push = push;
    this.sends = new PrefixSends(cache, { push, spares });
    this.loads = new PrefixLoads(cache, {
      ask: (served, part) => this.#ask(served, part),
      stop: (served, part) => this.#stop(served, part),
      spares,
    });
  }

  /** Another instance has more of its prompt than this one, as far as is known. */
  want(served: S, { from, blocks, patienceUs }: PrefixFetch): void {
    this.loads.want(served, [{ source: from, to: blocks }], patienceUs);
  }

  /** Returns why the message changed nothing, where it did not. */
  hear(from: InstanceIndex, message: PrefixMessage): string | undefined {
    const { id } = message;
    switch (message.kind) {
      case 'fetch':
        return this.sends.send(from, id, message.chain, message.from) ? undefined : `request ${id} is being served`;
      case 'missing':
        return this.loads.arrive(id, from, 0) ? undefined : `request ${id} does not wait for it`;
      case 'unwanted':
        return this.sends.stop(from, id) ? undefined : `nothing is being sent for request ${id}`;
    }
  }

  #ask({ id, sequence }: S, { source, from, to }: LoadPart): void {
    if (typeof source !== 'number') throw new Error(`Cannot load a prefix: there is no such tier: ${source}`);
    const chain = { blocks: to, words: sequence.chain.words.slice(0, to * digestWords) };
    this.#push({ kind: 'send', to: source, message: { kind: 'fetch', id, chain, from } });
  }

  #stop({ id }: S, { source }: LoadPart): void {
    if (typeof source === 'number') this.#push({ kind: 'send', to: source, message: { kind: 'unwanted', id } });
  }
}
