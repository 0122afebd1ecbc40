// Publishes the KV events of an instance's block cache, with other reports or once there are many.

import type { InstanceEffect } from '../../protocol/effects.ts';
import type { BlockCache } from '../block-cache.ts';
import { type BlockListener, KvEventLog, type TierListener } from './kv-event-log.ts';

type KvEvents = Extract<InstanceEffect, { kind: 'kvEvents' }>;
type Snapshot = Extract<InstanceEffect, { kind: 'snapshot' }>;
type Ignored = Extract<InstanceEffect, { kind: 'ignored' }>;

/** Maximum number of unpublished changes while there is nothing else to report. */
export const changesMax = 64;

export interface KvEventPublisherConfig {
  /** Incarnation of the instance; undefined: it publishes no KV events. */
  readonly incarnation?: number | undefined;
  /** Receives every change immediately. */
  readonly blockListener?: BlockListener | undefined;
  /** `onSsd`: blocks of an earlier run, see `LowerTiers.restore`. */
  readonly contents?: { readonly onSsd: Uint32Array | undefined } | undefined;
}

export class KvEventPublisher {
  readonly #cache: BlockCache;
  readonly #log: KvEventLog | undefined;

  /** Restores the blocks that are on SSD from an earlier run: they are reported as stored. */
  constructor(cache: BlockCache, { incarnation, blockListener, contents }: KvEventPublisherConfig) {
    this.#cache = cache;
    this.#log = incarnation === undefined ? undefined : new KvEventLog(incarnation);
    cache.setListener(blockListener === undefined ? this.#log : tee(blockListener, this.#log));
    if (contents?.onSsd !== undefined) cache.lower?.restore(contents.onSsd);
  }

  /** Number of the last batch; 0: none. */
  get number(): number {
    return this.#log?.number ?? 0;
  }

  /** The changes since the last batch: together with another report (`reporting`), or once there are many. */
  changes(reporting: boolean): KvEvents | undefined {
    const log = this.#log;
    if (log === undefined || log.changes === 0) return undefined;
    if (log.changes < changesMax && !reporting) return undefined;
    return { kind: 'kvEvents', batch: log.take() };
  }

  /**
   * The changes since the last batch, then a snapshot: a consumer that misses the snapshot has received every change.
   */
  snapshot(): readonly (KvEvents | Snapshot | Ignored)[] {
    if (this.#log === undefined)
      return [{ kind: 'ignored', message: 'Ignored requestSnapshot: this instance publishes no KV events' }];
    const changes = this.changes(true);
    const snapshot = this.#log.snapshot(this.#cache.indexedDigests(), this.#cache.lower?.ssdOnlyBlocks);
    const all = { kind: 'snapshot', snapshot } as const;
    return changes === undefined ? [all] : [changes, all];
  }
}

function tee(blockListener: BlockListener, log: TierListener | undefined): TierListener {
  return {
    record: (words, at, stored, depth) => {
      blockListener.record(words, at, stored, depth);
      log?.record(words, at, stored, depth);
    },
    setSsdOnly: (words, at, onSsd) => log?.setSsdOnly(words, at, onSsd),
  };
}
