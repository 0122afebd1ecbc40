// What instances tell the conductor of their caches: news of who is there, and what is missing is asked for.
import type { BlockChain } from '../policy/blocks/block-chain.ts';
import type { BlockJournal, BlockSnapshot } from '../policy/blocks/block-journal.ts';
import type { ConductorEffect } from './effects.ts';
import type { Fates } from './fates.ts';
import type { InstanceIndex } from './messages.ts';
import type { Placer } from './placer.ts';
import type { InstanceReport, Watch } from './watch.ts';

export class Hearsay<Request> {
  readonly #placer: Placer<Request>;
  readonly #watch: Watch;
  readonly #fates: Fates | undefined;
  readonly #push: (effect: ConductorEffect<Request>) => void;

  constructor(
    placer: Placer<Request>,
    watch: Watch,
    fates: Fates | undefined,
    push: (effect: ConductorEffect<Request>) => void,
  ) {
    this.#placer = placer;
    this.#watch = watch;
    this.#fates = fates;
    this.#push = push;
  }

  named(chain: BlockChain): Int32Array | undefined {
    return this.#placer.named(chain);
  }

  journal(instance: InstanceIndex, journal: BlockJournal): void {
    if (!this.#watch.isUp(instance)) this.#fates?.met('orphan', 'journal');
    else if (this.#placer.journal(instance, journal)) {
      this.#fates?.met('lost', 'journal');
      this.#push({ kind: 'askBlocks', instance });
    }
  }

  snapshot(instance: InstanceIndex, snapshot: BlockSnapshot): void {
    if (this.#watch.isUp(instance)) this.#placer.snapshot(instance, snapshot);
    else this.#fates?.met('orphan', 'snapshot');
  }

  /** Asks for what is missing of its journals. */
  catchUp(instance: InstanceIndex, { life, journal }: InstanceReport): void {
    if (this.#placer.isBehind(instance, life, journal)) this.#push({ kind: 'askBlocks', instance });
  }
}
