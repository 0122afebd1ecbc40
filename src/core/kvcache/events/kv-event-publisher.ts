// What an instance tells conductors of its block cache, and when.

import type { InstanceEffect } from '../../protocol/effects.ts';
import type { InstanceConfig } from '../../scheduler/instance-config.ts';
import type { BlockCache } from '../block-cache.ts';
import { type BlockListener, KvEventLog, type TierListener } from './kv-event-log.ts';

type Journal = Extract<InstanceEffect, { kind: 'journal' }>;
type Snapshot = Extract<InstanceEffect, { kind: 'snapshot' }>;
type Ignored = Extract<InstanceEffect, { kind: 'ignored' }>;

/** Changes of the cache that go untold at most, while no request has anything to tell. */
export const changesMax = 64;

export class KvEventPublisher {
  readonly #cache: BlockCache;
  readonly #recorder: KvEventLog | undefined;

  /** `journalLife`: undefined: nobody asks. `witness` hears of every change at once. What is on SSD from before is held from now on, and told. */
  constructor(
    cache: BlockCache,
    { journalIncarnation, witness, contents }: Pick<InstanceConfig, 'journalIncarnation' | 'witness' | 'contents'>,
  ) {
    this.#cache = cache;
    this.#recorder = journalIncarnation === undefined ? undefined : new KvEventLog(journalIncarnation);
    cache.tell(witness === undefined ? this.#recorder : besides(witness, this.#recorder));
    if (contents?.onSsd !== undefined) cache.lower?.restore(contents.onSsd);
  }

  /** The number of the last journal; 0: none. */
  get number(): number {
    return this.#recorder?.number ?? 0;
  }

  /** What changed, with whatever else there is to say (`speaking`) and before too much has gathered. */
  changes(speaking: boolean): Journal | undefined {
    const recorder = this.#recorder;
    if (recorder === undefined || recorder.changes === 0) return undefined;
    if (recorder.changes < changesMax && !speaking) return undefined;
    return { kind: 'journal', journal: recorder.take() };
  }

  /** All that is held, where a journal is kept, after what changed: whoever is not told all has heard of everything, too. */
  all(): readonly (Journal | Snapshot | Ignored)[] {
    if (this.#recorder === undefined) return [{ kind: 'ignored', message: 'Ignored tellBlocks: no journal is kept' }];
    const changes = this.changes(true);
    const snapshot = this.#recorder.snapshot(this.#cache.indexedDigests(), this.#cache.lower?.sunk);
    const all = { kind: 'snapshot', snapshot } as const;
    return changes === undefined ? [all] : [changes, all];
  }
}

function besides(witness: BlockListener, recorder: TierListener | undefined): TierListener {
  return {
    record: (words, at, stored, depth) => {
      witness.record(words, at, stored, depth);
      recorder?.record(words, at, stored, depth);
    },
    sank: (words, at, onSsd) => recorder?.sank(words, at, onSsd),
  };
}
