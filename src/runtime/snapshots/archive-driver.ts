// Stores snapshots of an instance's cache: carries out the effects of its SnapshotArchive.
import {
  type ArchiveEffect,
  type ArchiveEvent,
  defaultArchiveLimits,
  SnapshotArchive,
} from '../../core/kvcache/events/snapshot-archive.ts';
import type { KvEventBatch, KvSnapshot } from '../../core/protocol/kv-events.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { Bus } from '../bus/bus.ts';
import type { ClusterProcess } from '../processes/peer-session.ts';
import { Alarm, carryOutStep, nowUs } from '../threads/alarm.ts';
import { SnapshotWriter, type WriteResult } from './snapshot-store.ts';

/** Blocks in one message of a session: three quarters of the size limit. */
const sentBlocksMax = 3_145_728;

/** The snapshot cut to the blocks that fit into one message. Gateways lack the other blocks until they change; the instance itself still finds them. */
export function limitSnapshot(snapshot: KvSnapshot): KvSnapshot {
  const { blocks, words, onSsd = 0 } = snapshot;
  if (blocks <= sentBlocksMax) return snapshot;
  const sent = words.subarray(0, (words.length / blocks) * sentBlocksMax);
  return { ...snapshot, blocks: sentBlocksMax, words: sent, onSsd: Math.max(0, onSsd - (blocks - sentBlocksMax)) };
}

/** Longest wait for the store when the process ends; a snapshot left there expires. */
const closeMs = 1_000;

/** The owner of an ArchiveDriver. */
export interface ArchiveHost<Gateway> {
  /** Requests a snapshot from the instance's thread. */
  requestSnapshot(): void;
  /** Reports to the gateway that snapshot `number` is stored, with the later batches of KV events. */
  reportStored(gateway: Gateway, number: number, kvEvents: readonly KvEventBatch[]): void;
}

type ArchiveProcess = Pick<ClusterProcess, 'name' | 'incarnation' | 'log'> & { readonly bus: Pick<Bus, 'snapshots'> };

export class ArchiveDriver<Gateway> {
  readonly #process: ArchiveProcess;
  readonly #host: ArchiveHost<Gateway>;
  readonly #archive = new SnapshotArchive<Gateway>();
  readonly #writer: SnapshotWriter;
  readonly #alarm = new Alarm(() => this.#feed({ kind: 'wake' }));
  /** Gateways that receive the current snapshot over their sessions. */
  #recipients = new Set<Gateway>();
  #writing: Promise<void> = Promise.resolve();
  #closed = false;

  constructor(process: ArchiveProcess, host: ArchiveHost<Gateway>) {
    this.#process = process;
    this.#host = host;
    this.#writer = new SnapshotWriter(process.bus.snapshots, process.name, process.incarnation);
  }

  /** Returns the gateways to which the caller sends the snapshot. */
  onKvEvents(kvEvents: readonly KvEventBatch[], kvSnapshot: KvSnapshot | undefined): ReadonlySet<Gateway> {
    this.#recipients = new Set();
    this.#feed({ kind: 'published', batches: kvEvents, snapshot: kvSnapshot });
    return this.#recipients;
  }

  /** @param unreadable the stored snapshot that was reported last was of no use */
  onRequest(gateway: Gateway, unreadable: boolean): void {
    this.#feed({ kind: 'requested', gateway, unreadable });
  }

  onGatewayLost(gateway: Gateway): void {
    this.#feed({ kind: 'gatewayLeft', gateway });
  }

  /** Removes the stored snapshot if the store responds in time. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#alarm.set(Number.POSITIVE_INFINITY);
    let timer: NodeJS.Timeout | undefined;
    const timeout = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, closeMs);
    });
    const removed = this.#writing.then(() => this.#writer.remove()).catch(() => {});
    await Promise.race([removed, timeout]);
    clearTimeout(timer);
  }

  #feed(event: ArchiveEvent<Gateway>): void {
    if (this.#closed) return;
    carryOutStep(
      () => this.#archive.step(nowUs(), event),
      (effect) => this.#carryOut(effect),
      () => this.#alarm.set(this.#archive.nextUs),
    );
  }

  #carryOut(effect: ArchiveEffect<Gateway>): void {
    switch (effect.kind) {
      case 'takeSnapshot':
        this.#host.requestSnapshot();
        break;
      case 'write':
        this.#writing = this.#write(effect.snapshot);
        break;
      case 'sendStored':
        this.#host.reportStored(effect.gateway, effect.number, effect.batches);
        break;
      case 'sendSnapshot':
        this.#recipients.add(effect.gateway);
        break;
      case 'tooLarge':
        this.#process.log(
          `Cannot store a snapshot of the cache: it has ${effect.blocks} blocks, the limit is ${defaultArchiveLimits.blocksMax}; new gateways receive it over their sessions`,
        );
        break;
      default:
        assertNever(effect);
    }
  }

  async #write(snapshot: KvSnapshot): Promise<void> {
    const kind = await this.#writer.write(snapshot).catch((): WriteResult => 'writeFailed');
    this.#feed({ kind });
  }
}
