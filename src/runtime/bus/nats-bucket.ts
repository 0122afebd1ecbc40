// Records in a key-value bucket of a NATS server, which is created again if the server has lost it.
import { JetStreamApiError, jetstreamManager } from '@nats-io/jetstream';
import { type KV, Kvm } from '@nats-io/kv';
import type { NatsConnection } from '@nats-io/transport-node';
import { checkSubject, type Snapshots, type StoredRecord, type Subject } from './bus.ts';

/** JetStream's error code for an unexpected revision. */
const wrongRevision = 10071;
/** JetStream's error code when another client has created the same stream during the request. */
const subjectsOverlap = 10065;
/** The client's error name when no stream accepts a write. */
const bucketGone = 'JetStreamNotEnabled';
/** The revision of a key that was never written. */
const noRevision = 0;

export interface BucketOptions {
  /** Lifetime of an entry after its last write; undefined: unlimited. */
  readonly keptMs?: number | undefined;
  /** Servers that store the bucket; undefined: 1 for a new bucket. An existing bucket receives more, never fewer. */
  readonly replicas?: number | undefined;
}

export class NatsBucket implements Snapshots {
  readonly #connection: NatsConnection;
  readonly #name: string;
  readonly #options: BucketOptions;
  /** Undefined: the bucket may be gone, and is opened before its next use. */
  #bucket: Promise<KV> | undefined;

  constructor(connection: NatsConnection, name: string, options: BucketOptions) {
    this.#connection = connection;
    this.#name = name;
    this.#options = options;
  }

  /** Creates the bucket if it is absent. @throws Error if the server has no JetStream */
  open(): Promise<KV> {
    this.#bucket ??= this.#create()
      .catch((error: unknown) => {
        if (error instanceof JetStreamApiError && error.code === subjectsOverlap) return this.#create();
        throw error;
      })
      .catch((error: unknown) => {
        this.invalidate();
        throw error;
      });
    return this.#bucket;
  }

  /** The next use opens the bucket again. */
  invalidate(): void {
    this.#bucket = undefined;
  }

  async read(key: Subject): Promise<StoredRecord | undefined> {
    checkSubject(key, false);
    const entry = await this.#use((bucket) => bucket.get(key));
    return entry?.operation === 'PUT' ? { value: Uint8Array.from(entry.value), revision: entry.revision } : undefined;
  }

  async write(key: Subject, value: Uint8Array, revision: number | undefined): Promise<number | undefined> {
    const written = await this.#writeIf(key, value, revision ?? noRevision);
    if (written !== undefined || revision !== undefined) return written;
    // A removed entry leaves the revision of its removal.
    const entry = await this.#use((bucket) => bucket.get(key));
    return entry === null || entry.operation === 'PUT' ? undefined : this.#writeIf(key, value, entry.revision);
  }

  async put(key: Subject, value: Uint8Array): Promise<number> {
    checkSubject(key, false);
    return this.#use((bucket) => bucket.put(key, value));
  }

  async remove(key: Subject, revision: number): Promise<boolean> {
    checkSubject(key, false);
    const removed = this.#use((bucket) => bucket.delete(key, { previousSeq: revision }).then(() => true));
    return (await removed.catch(undefinedIfConflict)) ?? false;
  }

  /** @returns the bucket, which may exist already */
  async #create(): Promise<KV> {
    const { keptMs, replicas = 1 } = this.#options;
    const options = { history: 1, replicas, ...(keptMs !== undefined && { ttl: keptMs }) };
    const bucket = await new Kvm(this.#connection).create(this.#name, options);
    if (replicas === 1) return bucket;
    const { streamInfo } = await bucket.status();
    if (streamInfo.cluster === undefined) throw new Error(`${replicas} replicas need a cluster of NATS servers`);
    if (streamInfo.config.num_replicas >= replicas) return bucket;
    const { streams } = await jetstreamManager(this.#connection);
    await streams.update(streamInfo.config.name, { num_replicas: replicas });
    return bucket;
  }

  #writeIf(key: Subject, value: Uint8Array, previousSeq: number): Promise<number | undefined> {
    checkSubject(key, false);
    return this.#use((bucket) => bucket.put(key, value, { previousSeq })).catch(undefinedIfConflict);
  }

  /** If the bucket is gone, a write fails and a read times out. A failed write is repeated once on a new bucket. */
  async #use<T>(operation: (bucket: KV) => Promise<T>): Promise<T> {
    const bucket = await this.open();
    try {
      return await operation(bucket);
    } catch (error) {
      if (error instanceof JetStreamApiError || this.#connection.isClosed()) throw error;
      this.invalidate();
      if (!(error instanceof Error && error.name === bucketGone)) throw error;
      return operation(await this.open());
    }
  }
}

/** Undefined for a lost compare-and-set, which is a result and not an error. */
function undefinedIfConflict(error: unknown): undefined {
  if (error instanceof JetStreamApiError && error.code === wrongRevision) return undefined;
  throw error;
}
