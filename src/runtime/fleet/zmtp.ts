// ZMTP 3.0 over TCP, the protocol of ZeroMQ, with the mechanism NULL.
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { reasonOf } from './reason-of.ts';

export type ZmtpType = 'SUB' | 'DEALER' | 'PUB' | 'ROUTER';

/** Version 3.0, mechanism NULL, not a server: 64 bytes. */
const greeting = Buffer.alloc(64);
greeting.set([0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0]);
greeting.write('NULL', 12, 'latin1');

const flags = { more: 1, long: 2, command: 4 } as const;
/** Larger frames and messages end the connection. */
const messageMax = { bytes: 2 ** 26, frames: 64 };
const handshakeTimeoutMs = 5_000;
const keepAliveMs = 10_000;
const none: Buffer = Buffer.alloc(0);

export interface ZmtpHandler {
  /** Messages can be sent from now on. */
  onReady?(): void;
  onMessage(frames: readonly Buffer[]): void;
  /** The peer has taken most of what was sent. */
  onDrain?(): void;
  /** The connection has ended, or was never established; the last call. */
  onClose(reason: string): void;
}

/** One ZMTP connection, of either side. */
export class ZmtpConnection {
  readonly #socket: Socket;
  readonly #handler: ZmtpHandler;
  #received: Buffer = none;
  /** Arrived behind `received`. */
  #chunks: Buffer[] = [];
  #chunkBytes = 0;
  /** Bytes until the next frame, or its head, is whole. */
  #neededBytes: number = greeting.length;
  #state: 'greeting' | 'handshake' | 'ready' = 'greeting';
  #frames: Buffer[] = [];
  #messageBytes = 0;
  #isClosed = false;
  readonly #handshakeTimer: NodeJS.Timeout;
  #reason = 'the peer closed the connection';

  constructor(socket: Socket, type: ZmtpType, handler: ZmtpHandler) {
    this.#socket = socket;
    this.#handler = handler;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, keepAliveMs);
    this.#handshakeTimer = setTimeout(
      () => this.#fail(`no handshake in ${handshakeTimeoutMs / 1000} s`),
      handshakeTimeoutMs,
    );
    this.#handshakeTimer.unref();
    socket.on('data', (bytes) => this.#receive(bytes));
    socket.on('drain', () => handler.onDrain?.());
    socket.on('error', (error) => {
      this.#reason = reasonOf(error);
    });
    socket.on('close', () => {
      clearTimeout(this.#handshakeTimer);
      handler.onClose(this.#reason);
    });
    socket.write(greeting);
    const properties = [property('Socket-Type', type), ...(type === 'DEALER' ? [property('Identity', '')] : [])];
    socket.write(frame(flags.command, Buffer.concat([Buffer.from('\x05READY', 'latin1'), ...properties])));
  }

  /** Bytes that the peer has not taken. */
  get queuedBytes(): number {
    return this.#socket.writableLength;
  }

  send(frames: readonly Uint8Array[]): void {
    for (const [i, bytes] of frames.entries())
      this.#socket.write(frame(i + 1 < frames.length ? flags.more : 0, Buffer.from(bytes)));
  }

  /** No message follows. */
  close(): void {
    this.#fail('closed');
  }

  #fail(reason: string): void {
    this.#isClosed = true;
    this.#reason = reason;
    clearTimeout(this.#handshakeTimer);
    this.#socket.destroy();
  }

  #receive(bytes: Buffer): void {
    if (this.#isClosed) return;
    this.#chunks.push(bytes);
    this.#chunkBytes += bytes.length;
    // A large frame is joined once, when it is whole.
    if (this.#received.length + this.#chunkBytes < this.#neededBytes) return;
    this.#received =
      this.#received.length === 0 && this.#chunks.length === 1
        ? bytes
        : Buffer.concat([this.#received, ...this.#chunks]);
    this.#chunks = [];
    this.#chunkBytes = 0;
    try {
      while (!this.#isClosed && this.#advance());
    } catch (error) {
      this.#fail(reasonOf(error));
    }
  }

  /** Consumes the greeting or a frame; false: it has not arrived whole. */
  #advance(): boolean {
    if (this.#state === 'greeting') {
      if (this.#lacks(greeting.length)) return false;
      const [signature, major, mechanism] = [
        this.#received[0],
        this.#received[10],
        this.#received.toString('latin1', 12, 16),
      ];
      if (signature !== 0xff || major < 3 || mechanism !== 'NULL')
        throw new Error('the peer does not speak ZMTP 3 with the mechanism NULL');
      this.#received = this.#received.subarray(greeting.length);
      this.#state = 'handshake';
      return true;
    }
    const head = this.#received;
    if (this.#lacks(2)) return false;
    const isLong = (head[0] & flags.long) !== 0;
    if (isLong && this.#lacks(9)) return false;
    const size = isLong ? Number(head.readBigUInt64BE(1)) : head[1];
    if (this.#messageBytes + size > messageMax.bytes)
      throw new Error(`a message of ${this.#messageBytes + size} bytes exceeds ${messageMax.bytes}`);
    const from = isLong ? 9 : 2;
    if (this.#lacks(from + size)) return false;
    this.#received = head.subarray(from + size);
    this.#take(head[0], head.subarray(from, from + size));
    return true;
  }

  /** True: fewer bytes have arrived. */
  #lacks(bytes: number): boolean {
    this.#neededBytes = bytes;
    return this.#received.length < bytes;
  }

  #take(flag: number, body: Buffer): void {
    if ((flag & flags.command) !== 0) this.#command(body);
    else {
      this.#frames.push(body);
      this.#messageBytes += body.length;
      if (this.#frames.length > messageMax.frames) throw new Error(`a message exceeds ${messageMax.frames} frames`);
      if ((flag & flags.more) !== 0) return;
      const frames = this.#frames;
      this.#frames = [];
      this.#messageBytes = 0;
      this.#handler.onMessage(frames);
    }
  }

  #command(body: Buffer): void {
    const name = body.toString('latin1', 1, 1 + (body[0] ?? 0));
    if (name === 'ERROR') throw new Error(`the peer refuses the connection: ${body.toString('latin1', 7)}`);
    if (name === 'READY' && this.#state === 'handshake') {
      this.#state = 'ready';
      clearTimeout(this.#handshakeTimer);
      this.#handler.onReady?.();
    }
    // A ping carries a time to live of two bytes, and a context that the answer repeats.
    if (name === 'PING')
      this.#socket.write(frame(flags.command, Buffer.concat([Buffer.from('\x04PONG', 'latin1'), body.subarray(7)])));
  }
}

/** Connects to an endpoint of the form tcp://HOST:PORT. */
export function connectZmtp(endpoint: string, type: 'SUB' | 'DEALER', handler: ZmtpHandler): ZmtpConnection {
  const { host, port } = tcpAddress(endpoint);
  return new ZmtpConnection(connect({ host, port }), type, handler);
}

/** Connections of a socket that accepts them; more are closed. */
const connectionsMax = 256;

/** A socket that accepts connections. */
export class ZmtpServer {
  readonly #server: Server;
  readonly #connections = new Set<ZmtpConnection>();

  private constructor(type: 'PUB' | 'ROUTER', handlerOf: (connection: ZmtpConnection) => ZmtpHandler) {
    this.#server = createServer((socket) => {
      const late: { handler?: ZmtpHandler } = {};
      const connection = new ZmtpConnection(socket, type, {
        onReady: () => late.handler?.onReady?.(),
        onMessage: (frames) => late.handler?.onMessage(frames),
        onDrain: () => late.handler?.onDrain?.(),
        onClose: (reason) => {
          this.#connections.delete(connection);
          late.handler?.onClose(reason);
        },
      });
      late.handler = handlerOf(connection);
      this.#connections.add(connection);
    });
    this.#server.maxConnections = connectionsMax;
  }

  /** @param endpoint tcp://HOST:PORT; the host `*` is all addresses, the port 0 a free one. @throws Error in one line */
  static async listen(
    endpoint: string,
    type: 'PUB' | 'ROUTER',
    handlerOf: (connection: ZmtpConnection) => ZmtpHandler,
  ): Promise<ZmtpServer> {
    const { host, port } = tcpAddress(endpoint, 0);
    const server = new ZmtpServer(type, handlerOf);
    await new Promise<void>((resolve, reject) => {
      server.#server.once('error', (error) => reject(new Error(`Cannot listen on ${endpoint}: ${reasonOf(error)}`)));
      server.#server.listen({ port, ...(host !== '*' && { host }) }, resolve);
    });
    return server;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  close(): void {
    this.#server.close();
    for (const connection of this.#connections) connection.close();
  }
}

/** The message by which a SUB socket subscribes. */
export function subscription(topic: string): readonly Uint8Array[] {
  return [Buffer.concat([Buffer.of(1), Buffer.from(topic)])];
}

/** @throws Error if the endpoint has another form */
export function tcpAddress(endpoint: string, portMin = 1): { readonly host: string; readonly port: number } {
  const match = /^tcp:\/\/(\[[^\]]+\]|[^:]+):(\d+)$/.exec(endpoint);
  if (match === null) throw new Error(`Invalid endpoint ${endpoint}: write tcp://HOST:PORT`);
  const port = Number(match[2]);
  if (port < portMin || port > 65_535)
    throw new Error(`Invalid endpoint ${endpoint}: the port must be ${portMin} to 65535`);
  return { host: match[1].replace(/^\[|\]$/g, ''), port };
}

function property(name: string, value: string): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(Buffer.byteLength(value));
  return Buffer.concat([Buffer.of(name.length), Buffer.from(name, 'latin1'), length, Buffer.from(value, 'latin1')]);
}

function frame(flag: number, body: Buffer): Buffer {
  if (body.length < 256) return Buffer.concat([Buffer.of(flag, body.length), body]);
  const head = Buffer.alloc(9);
  head[0] = flag | flags.long;
  head.writeBigUInt64BE(BigInt(body.length), 1);
  return Buffer.concat([head, body]);
}
