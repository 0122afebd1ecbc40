// An instance's copy of what its cache holds, in the store: carries out what its archive wants.
import {
  type ArchiveEffect,
  type ArchiveEvent,
  defaultArchiveLimits,
  SnapshotArchive,
} from '../../core/kvcache/events/snapshot-archive.ts';
import type { Snapshots } from '../bus/bus.ts';
import { Alarm, nowUs } from '../threads/alarm.ts';
import type { KvEventBatch, KvSnapshot } from '../threads/thread-protocol.ts';
import { SnapshotWriter, type WriteResult } from './snapshot-store.ts';

/** Three quarters of what a link takes in one message. */
const toldMax = 3_145_728;

/** What gateways are told of a listing over their links: of what comes after so many blocks they know what changes, and the instance finds it by itself. */
export function limitSnapshot(listing: KvSnapshot): KvSnapshot {
  const { blocks, words, onSsd = 0 } = listing;
  if (blocks <= toldMax) return listing;
  const told = words.subarray(0, (words.length / blocks) * toldMax);
  return { ...listing, blocks: toldMax, words: told, onSsd: Math.max(0, onSsd - (blocks - toldMax)) };
}

/** A process that ends does not wait longer for the store: what it leaves there is forgotten. */
const leaveMs = 1_000;

export interface ArchiveDriverOptions<Gateway> {
  readonly snapshots: Snapshots;
  readonly name: string;
  readonly incarnation: number;
  /** The instance's thread is to tell all that it holds. */
  readonly list: () => void;
  readonly tellStored: (gateway: Gateway, number: number, journals: readonly KvEventBatch[]) => void;
  readonly log: (message: string) => void;
}

export class ArchiveDriver<Gateway> {
  readonly #options: ArchiveDriverOptions<Gateway>;
  readonly #archive = new SnapshotArchive<Gateway>();
  readonly #writer: SnapshotWriter;
  readonly #alarm = new Alarm(() => this.#feed({ kind: 'wake' }));
  /** Who is to be told of the listing that was heard last. */
  #told = new Set<Gateway>();
  #writing: Promise<void> = Promise.resolve();
  #closed = false;

  constructor(options: ArchiveDriverOptions<Gateway>) {
    this.#options = options;
    this.#writer = new SnapshotWriter(options.snapshots, options.name, options.incarnation);
  }

  /** Tells who has asked for the blocks. */
  onKvEvents(journals: readonly KvEventBatch[], blocks: KvSnapshot | undefined): ReadonlySet<Gateway> {
    this.#told = new Set();
    this.#feed({ kind: 'heard', journals, blocks });
    return this.#told;
  }

  /** @param unread the copy that it was told of was not there */
  onRequest(gateway: Gateway, unread: boolean): void {
    this.#feed({ kind: 'asked', gateway, unread });
  }

  onGatewayLost(gateway: Gateway): void {
    this.#feed({ kind: 'gone', gateway });
  }

  /** Nobody finds its copy any more, if the store can be reached soon. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#alarm.set(Number.POSITIVE_INFINITY);
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, leaveMs);
    });
    const removed = this.#writing.then(() => this.#writer.remove()).catch(() => {});
    await Promise.race([removed, late]);
    clearTimeout(timer);
  }

  #feed(event: ArchiveEvent<Gateway>): void {
    if (this.#closed) return;
    for (const effect of this.#archive.step(nowUs(), event)) this.#carryOut(effect);
    this.#alarm.set(this.#archive.nextUs);
  }

  #carryOut(effect: ArchiveEffect<Gateway>): void {
    switch (effect.kind) {
      case 'list':
        this.#options.list();
        break;
      case 'write':
        this.#writing = this.#write(effect.snapshot);
        break;
      case 'tellStored':
        this.#options.tellStored(effect.gateway, effect.number, effect.journals);
        break;
      case 'requestSnapshot':
        this.#told.add(effect.gateway);
        break;
      case 'refused':
        this.#options.log(
          `Cannot keep a copy of what the cache holds in the store: it has ${effect.blocks} blocks, at most ${defaultArchiveLimits.blocksMax} can be: gateways that come are told over their links`,
        );
    }
  }

  async #write(snapshot: KvSnapshot): Promise<void> {
    const kind = await this.#writer.write(snapshot).catch((): WriteResult => 'unwritten');
    this.#feed({ kind });
  }
}
