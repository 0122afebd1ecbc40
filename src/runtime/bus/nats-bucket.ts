// Records in a key-value bucket of a NATS server, which is made anew where the server has lost it.
import { JetStreamApiError } from '@nats-io/jetstream';
import { type KV, Kvm } from '@nats-io/kv';
import type { NatsConnection } from '@nats-io/transport-node';
import { checkSubject, type Snapshots, type StoredRecord, type Subject } from './bus.ts';

/** Of JetStream: the record has another revision than was expected. */
const wrongRevision = 10071;
/** What the client calls it when nobody takes what is written. */
const bucketGone = 'JetStreamNotEnabled';
/** Of a key that never was. */
const noRevision = 0;

export class NatsBucket implements Snapshots {
  readonly #connection: NatsConnection;
  readonly #name: string;
  readonly #keptMs: number | undefined;
  /** Undefined: it may not be there any more. */
  #bucket: Promise<KV> | undefined;

  /** @param keptMs undefined: what is written stays */
  constructor(connection: NatsConnection, name: string, keptMs?: number) {
    this.#connection = connection;
    this.#name = name;
    this.#keptMs = keptMs;
  }

  /** Makes the bucket if it is not there. @throws Error where the server keeps none */
  open(): Promise<KV> {
    const options = this.#keptMs === undefined ? { history: 1 } : { history: 1, ttl: this.#keptMs };
    this.#bucket ??= new Kvm(this.#connection).create(this.#name, options).catch((error: unknown) => {
      this.doubt();
      throw error;
    });
    return this.#bucket;
  }

  /** It is looked for before it is used again. */
  doubt(): void {
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
    // One that was removed has left the revision of its removal.
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
    return (await removed.catch(undefinedIfOther)) ?? false;
  }

  #writeIf(key: Subject, value: Uint8Array, previousSeq: number): Promise<number | undefined> {
    checkSubject(key, false);
    return this.#use((bucket) => bucket.put(key, value, { previousSeq })).catch(undefinedIfOther);
  }

  /** Where the bucket is gone writes say so, and reads are not answered: once it is made anew they are tried again. */
  async #use<T>(act: (bucket: KV) => Promise<T>): Promise<T> {
    const bucket = await this.open();
    try {
      return await act(bucket);
    } catch (error) {
      if (error instanceof JetStreamApiError || this.#connection.isClosed()) throw error;
      this.doubt();
      if (!(error instanceof Error && error.name === bucketGone)) throw error;
      return act(await this.open());
    }
  }
}

/** Somebody else was faster: that is an answer, not an error. */
function undefinedIfOther(error: unknown): undefined {
  if (error instanceof JetStreamApiError && error.code === wrongRevision) return undefined;
  throw error;
}
