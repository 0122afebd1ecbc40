// A bus over a NATS server: core subjects for messages, key-value buckets with JetStream for records and snapshots.
import { type ConnectionOptions, connect, type NatsConnection } from '@nats-io/transport-node';
import { type Bus, checkSubject, type Records, type Snapshots, type Subject, snapshotsKeptMs } from './bus.ts';
import { NatsBucket } from './nats-bucket.ts';

const reconnectWaitMs = 250;
const connectTimeoutMs = 5_000;
/** A server that leaves two of these unanswered is gone, though nothing said so: a link that was cut. */
const pingMs = 2_000;

/**
 * Clusters of different names share a server and do not hear each other. Comes back by itself when the server was away.
 * @param url nats://HOST:PORT, with a token or user:password before the host where the server wants one
 * @param log told when the connection breaks, and when it is back
 * @throws Error in one line when the server cannot be reached, refuses, or keeps no records
 */
export async function connectNats(
  url: string,
  cluster: string,
  log: (message: string) => void = () => {},
): Promise<Bus> {
  checkSubject(cluster, false);
  const connection = await connectOrSay(url);
  try {
    const records = new NatsBucket(connection, `kvasir-${cluster}`);
    const snapshots = new NatsBucket(connection, `kvasir-${cluster}-snapshots`, snapshotsKeptMs);
    await Promise.all([records.open(), snapshots.open()]);
    const bus = new NatsBus(connection, { records, snapshots }, cluster);
    void bus.follow((up) => {
      log(up ? `NATS at ${shown(url)} is back` : `Lost NATS at ${shown(url)}: trying again until it is back`);
    });
    return bus;
  } catch (error) {
    await connection.close();
    throw new Error(`Cannot keep records on NATS at ${shown(url)}: is its JetStream on? ${said(error)}`);
  }
}

async function connectOrSay(url: string): Promise<NatsConnection> {
  try {
    return await connect({
      ...credentials(new URL(url)),
      maxReconnectAttempts: -1,
      reconnectTimeWait: reconnectWaitMs,
      timeout: connectTimeoutMs,
      pingInterval: pingMs,
      maxPingOut: 2,
      // The process that asked decides what to do then.
      waitOnFirstConnect: false,
    });
  } catch (error) {
    throw new Error(`Cannot connect to NATS at ${shown(url)}: ${said(error)}`);
  }
}

function credentials({ protocol, host, username, password }: URL): ConnectionOptions {
  const [user, pass] = [decodeURIComponent(username), decodeURIComponent(password)];
  const server = `${protocol}//${host}`;
  if (user === '') return { servers: server };
  return pass === '' ? { servers: server, token: user } : { servers: server, user, pass };
}

/** Without its secrets. */
function shown(url: string): string {
  return url.replace(/\/\/[^/]*@/, '//');
}

function said(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

class NatsBus implements Bus {
  readonly records: Records;
  readonly snapshots: Snapshots;
  readonly lasting = false;
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
    // The client would keep it for later, when it is no longer true.
    if (this.#up && !this.#isOver) this.#connection.publish(this.#prefix + subject, payload);
  }

  subscribe(subject: Subject, hear: (payload: Uint8Array, subject: Subject) => void): () => void {
    checkSubject(subject, true);
    if (this.#isOver) return () => {};
    const subscription = this.#connection.subscribe(this.#prefix + subject, {
      callback: (error, message) => {
        if (error === null) hear(message.data, message.subject.slice(this.#prefix.length));
      },
    });
    return () => subscription.unsubscribe();
  }

  async flush(): Promise<void> {
    if (!this.#up || this.#connection.isClosed()) throw new Error('Cannot flush the bus: the connection is down');
    await this.#connection.flush();
  }

  watch(tell: (up: boolean) => void): () => void {
    this.#watchers.add(tell);
    tell(this.#up && !this.#connection.isClosed());
    return () => this.#watchers.delete(tell);
  }

  close(): Promise<void> {
    this.#closing ??= this.#end();
    return this.#closing;
  }

  /** @param tell whenever the connection breaks or is back, though not when it is closed here */
  async follow(tell: (up: boolean) => void): Promise<void> {
    for await (const { type } of this.#connection.status()) {
      if (type !== 'disconnect' && type !== 'reconnect') continue;
      const up = type === 'reconnect';
      // A server that comes back may have lost its disk.
      if (up) for (const bucket of this.#buckets) bucket.doubt();
      if (up !== this.#up && this.#closing === undefined) tell(up);
      this.#turn(up);
    }
  }

  /** While it closes the client throws at whoever speaks, and a timer may. */
  get #isOver(): boolean {
    return this.#closing !== undefined || this.#connection.isClosed();
  }

  async #end(): Promise<void> {
    if (this.#connection.isClosed()) return;
    const down = new Promise<void>((resolve) => {
      this.watch((up) => {
        if (!up) resolve();
      });
    });
    // Draining waits for the server, which may be gone, or go now.
    if (this.#up) await Promise.race([down, this.#connection.drain().catch(() => {})]);
    if (!this.#connection.isClosed()) await this.#connection.close();
    this.#turn(false);
  }

  #turn(up: boolean): void {
    if (this.#up === up) return;
    this.#up = up;
    for (const tell of this.#watchers) tell(up);
  }
}
