// What an instance publishes about its block cache, and when.

import type { InstanceEffect } from '../../protocol/effects.ts';
import type { InstanceConfig } from '../../scheduler/instance-config.ts';
import type { BlockCache } from '../block-cache.ts';
import { type BlockListener, KvEventLog, type TierListener } from './kv-event-log.ts';

type Journal = Extract<InstanceEffect, { kind: 'journal' }>;
type Snapshot = Extract<InstanceEffect, { kind: 'snapshot' }>;
type Ignored = Extract<InstanceEffect, { kind: 'ignored' }>;

/** Maximum number of unpublished changes while no request has anything to report. */
export const changesMax = 64;

export class KvEventPublisher {
  readonly #cache: BlockCache;
  readonly #recorder: KvEventLog | undefined;

  /** Blocks that are on SSD from an earlier run are stored, and reported, from now on. */
  constructor(
    cache: BlockCache,
    { journalIncarnation, witness, contents }: Pick<InstanceConfig, 'journalIncarnation' | 'witness' | 'contents'>,
  ) {
    this.#cache = cache;
    this.#recorder = journalIncarnation === undefined ? undefined : new KvEventLog(journalIncarnation);
    cache.tell(witness === undefined ? this.#recorder : besides(witness, this.#recorder));
    if (contents?.onSsd !== undefined) cache.lower?.restore(contents.onSsd);
  }

  /** Number of the last batch; 0: none. */
  get number(): number {
    return this.#recorder?.number ?? 0;
  }

  /** The changes since the last batch: together with another report (`reporting`), or once there are many. */
  changes(speaking: boolean): Journal | undefined {
    const recorder = this.#recorder;
    if (recorder === undefined || recorder.changes === 0) return undefined;
    if (recorder.changes < changesMax && !speaking) return undefined;
    return { kind: 'journal', journal: recorder.take() };
  }

  /**
   * The changes since the last batch, then a snapshot: a consumer that misses the snapshot has received every change.
   */
  all(): readonly (Journal | Snapshot | Ignored)[] {
    if (this.#recorder === undefined) return [{ kind: 'ignored', message: 'Ignored requestSnapshot: this instance publishes no KV events' }];
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
