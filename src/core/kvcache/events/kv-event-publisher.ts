// Publishes the KV events of an instance's block caches, with other reports or once there are many.

import { DigestTable } from '../../../util/digest-table.ts';
import type { InstanceEffect } from '../../protocol/effects.ts';
import type { KvCaches } from '../kv-caches.ts';
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
  readonly #caches: KvCaches;
  readonly #log: KvEventLog | undefined;

  /**
   * Restores the blocks that are on SSD from an earlier run: they are reported as stored. A block is reported as stored
   * while one of the caches has it.
   */
  constructor(caches: KvCaches, { incarnation, blockListener, contents }: KvEventPublisherConfig) {
    this.#caches = caches;
    this.#log = incarnation === undefined ? undefined : new KvEventLog(incarnation);
    const listener = blockListener === undefined ? this.#log : tee(blockListener, this.#log);
    const shared = caches.all.length === 1 || listener === undefined ? listener : anyCache(listener);
    for (const cache of caches.all) cache.setListener(shared);
    if (contents?.onSsd !== undefined) caches.first.lower?.restore(contents.onSsd);
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
    const snapshot = this.#log.snapshot(this.#caches.indexedDigests(), this.#caches.first.lower?.ssdOnlyBlocks);
    const all = { kind: 'snapshot', snapshot } as const;
    return changes === undefined ? [all] : [changes, all];
  }
}

/** Passes on the first copy that a cache stores, and the removal of the last. Instances with several caches have no tiers below. */
function anyCache(listener: TierListener): TierListener {
  const copies = new DigestTable();
  return {
    record: (words, at, stored, depth, block) => {
      const before = copies.get(words, at) ?? 0;
      if (stored) copies.set(words, at, before + 1);
      else if (before > 1) copies.set(words, at, before - 1);
      else copies.delete(words, at);
      if (before === Number(!stored)) listener.record(words, at, stored, depth, block);
    },
    setSsdOnly: (words, at, onSsd) => listener.setSsdOnly(words, at, onSsd),
  };
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
