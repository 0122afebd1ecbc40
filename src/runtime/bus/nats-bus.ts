// A bus over a NATS server: core subjects for messages, key-value buckets with JetStream for records and snapshots.
import type { NatsConnection } from '@nats-io/transport-node';
import { type Bus, checkSubject, type Records, type Snapshots, type Subject, snapshotsKeptMs } from './bus.ts';
import { NatsBucket } from './nats-bucket.ts';
import { connectServers, messageOf, type NatsServers, redacted } from './nats-connection.ts';

/**
 * Clusters of different names share a server in isolation. The bus reconnects by itself after an outage.
 * @param given the servers, or their URLs alone
 * @param log receives a line when the connection breaks and when it is back
 * @throws Error in one line when no server can be reached, it refuses, accepts any client, or keeps no records
 */
export async function connectNats(
  given: NatsServers | string,
  cluster: string,
  log: (message: string) => void = () => {},
): Promise<Bus> {
  checkSubject(cluster, false);
  const servers = typeof given === 'string' ? { urls: given } : given;
  const where = redacted(servers.urls);
  const connection = await connectServers(servers);
  try {
    const { replicas } = servers;
    const records = new NatsBucket(connection, `kvasir-${cluster}`, { replicas });
    const snapshots = new NatsBucket(connection, `kvasir-${cluster}-snapshots`, { replicas, keptMs: snapshotsKeptMs });
    await Promise.all([records.open(), snapshots.open()]);
    const bus = new NatsBus(connection, { records, snapshots }, cluster);
    void bus.follow((up) => {
      log(up ? `NATS at ${where} is back` : `Lost NATS at ${where}: reconnecting`);
    });
    return bus;
  } catch (error) {
    await connection.close();
    throw new Error(`Cannot keep records on NATS at ${where}: is its JetStream on? ${messageOf(error)}`);
  }
}

class NatsBus implements Bus {
  readonly records: Records;
  readonly snapshots: Snapshots;
  readonly durable = false;
  readonly #buckets: readonly NatsBucket[];
  readonly #connection: NatsConnection;
  readonly #prefix: string;
  readonly #watchers = new Set<(up: boolean) => void>();
  #up = true;
  #closing: Promise<void> | undefined;

  constructor(
    connection: NatsConnection,
    { records, snapshots }: { readonly records: NatsBucket; readonly snapshots: NatsBucket },
    cluster: string,
  ) {
    this.#connection = connection;
    this.#prefix = `kvasir.${cluster}.`;
    this.records = records;
    this.snapshots = snapshots;
    this.#buckets = [records, snapshots];
  }

  publish(subject: Subject, payload: Uint8Array): void {
    checkSubject(subject, false);
    // The client would send it after the reconnection, when it is outdated.
    if (this.#up && !this.#isOver) this.#connection.publish(this.#prefix + subject, payload);
  }

  subscribe(subject: Subject, handler: (payload: Uint8Array, subject: Subject) => void): () => void {
    checkSubject(subject, true);
    if (this.#isOver) return () => {};
    const subscription = this.#connection.subscribe(this.#prefix + subject, {
      callback: (error, message) => {
        if (error === null) handler(message.data, message.subject.slice(this.#prefix.length));
      },
    });
    return () => subscription.unsubscribe();
  }

  async flush(): Promise<void> {
    if (!this.#up || this.#connection.isClosed()) throw new Error('Cannot flush the bus: the connection is down');
    await this.#connection.flush();
  }

  watchConnection(onChange: (up: boolean) => void): () => void {
    this.#watchers.add(onChange);
    onChange(this.#up && !this.#connection.isClosed());
    return () => this.#watchers.delete(onChange);
  }

  close(): Promise<void> {
    this.#closing ??= this.#end();
    return this.#closing;
  }

  /** Follows the connection's state. @param onChange called when the connection breaks or is back, but not when this process closes it */
  async follow(onChange: (up: boolean) => void): Promise<void> {
    for await (const { type } of this.#connection.status()) {
      if (type !== 'disconnect' && type !== 'reconnect') continue;
      const up = type === 'reconnect';
      // The server may have lost its disk.
      if (up) for (const bucket of this.#buckets) bucket.invalidate();
      if (up !== this.#up && this.#closing === undefined) onChange(up);
      this.#setUp(up);
    }
  }

  /** A closing client throws on every use; timers may still call this bus. */
  get #isOver(): boolean {
    return this.#closing !== undefined || this.#connection.isClosed();
  }

  async #end(): Promise<void> {
    if (this.#connection.isClosed()) return;
    const down = new Promise<void>((resolve) => {
      this.watchConnection((up) => {
        if (!up) resolve();
      });
    });
    // Draining waits for the server, which may be gone or go meanwhile.
    if (this.#up) await Promise.race([down, this.#connection.drain().catch(() => {})]);
    if (!this.#connection.isClosed()) await this.#connection.close();
    this.#setUp(false);
  }

  #setUp(up: boolean): void {
    if (this.#up === up) return;
    this.#up = up;
    for (const onChange of this.#watchers) onChange(up);
  }
}
