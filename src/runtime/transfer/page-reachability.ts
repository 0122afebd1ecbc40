// Whether this process can send pages to each other instance of the cluster: connects to the announced addresses and reads the greeting.
import { connect } from 'node:net';
import { type ClusterProcess, silentUs } from '../processes/peer-session.ts';
import { readDeparture, readInstance } from '../wire/messages.ts';

const connectMs = 3_000;
/** The second attempt follows soon: the peer may not listen yet. */
const secondMs = 500;
const unreachableMs = 5_000;
const reachableMs = 60_000;
/** A peer without announcements for this time is forgotten. */
const forgottenMs = silentUs / 1000;

/** The first words of a page port: the magic number of the handshake (`native/net/handshake.hpp`). */
const greetingMagic = 0x31726973_6176726bn;
const helloBytes = 48;
const handshakeVersion = 2;

/** Resolves with the reason why no pages can be sent to the address, HOST:PORT; undefined: it answers as a page port does. */
export function probePages(address: string): Promise<string | undefined> {
  const at = address.lastIndexOf(':');
  const [host, port] = [address.slice(0, at), Number(address.slice(at + 1))];
  if (!Number.isInteger(port) || port < 1 || port > 65_535) return Promise.resolve('the address has no valid port');
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: connectMs });
    const end = (why: string | undefined): void => {
      socket.destroy();
      resolve(why);
    };
    const hello = Buffer.alloc(helloBytes);
    hello.writeBigUInt64LE(greetingMagic, 0);
    hello.writeUInt32LE(handshakeVersion, 8);
    let answer = Buffer.alloc(0);
    socket.once('connect', () => socket.write(hello));
    socket.on('data', (bytes) => {
      answer = Buffer.concat([answer, bytes]);
      if (answer.length >= 8) end(answer.readBigUInt64LE(0) === greetingMagic ? undefined : 'another service answers');
    });
    socket.once('timeout', () => end('no answer'));
    socket.once('error', (error: NodeJS.ErrnoException) => end(error.code ?? error.message));
    socket.once('close', () => end('it ends the connection'));
  });
}

interface Target {
  readonly address: string;
  readonly incarnation: number;
  announcedMs: number;
  probedMs: number;
  /** A probe is in progress. */
  probing: boolean;
  failures: number;
  /** Why it is unreachable, after two failures. */
  why: string | undefined;
}

export interface PageReachabilityOptions extends ClusterProcess {
  /** HOST:PORT of this process, if it receives pages. */
  readonly own: string | undefined;
  readonly probe?: (address: string) => Promise<string | undefined>;
}

/** Logs an unreachable instance once, and again when it is back. */
export class PageReachability {
  readonly #options: PageReachabilityOptions;
  /** By name. */
  readonly #targets = new Map<string, Target>();
  readonly #stops: (() => void)[] = [];
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: PageReachabilityOptions) {
    this.#options = options;
  }

  start(): void {
    const { bus } = this.#options;
    this.#stops.push(
      bus.subscribe('beat.instance', (bytes) => ignoreMalformed(() => this.#onAnnouncement(bytes))),
      bus.subscribe('leave.instance', (bytes) =>
        ignoreMalformed(() => this.#targets.delete(readDeparture(bytes).name)),
      ),
    );
    this.#timer = setInterval(() => this.#onTimer(), secondMs).unref();
  }

  close(): void {
    this.#closed = true;
    clearInterval(this.#timer);
    for (const stop of this.#stops) stop();
  }

  /** Names of the instances to which pages cannot be sent. */
  get unreachable(): readonly string[] {
    return [...this.#targets].flatMap(([name, { why }]) => (why === undefined ? [] : [name]));
  }

  #onAnnouncement(bytes: Uint8Array): void {
    const { name, incarnation, pages } = readInstance(bytes);
    if (name === this.#options.name || pages === undefined) return;
    const known = this.#targets.get(name);
    const announcedMs = performance.now();
    if (known?.incarnation === incarnation && known.address === pages) {
      known.announcedMs = announcedMs;
      return;
    }
    const target: Target = {
      ...{ address: pages, incarnation, announcedMs, probedMs: announcedMs },
      ...{ probing: false, failures: 0, why: undefined },
    };
    this.#targets.set(name, target);
    this.#probe(name, target);
  }

  #onTimer(): void {
    const now = performance.now();
    for (const [name, target] of this.#targets) {
      const { failures, why, probedMs, announcedMs } = target;
      const waitMs = why !== undefined ? unreachableMs : failures > 0 ? secondMs : reachableMs;
      if (now - announcedMs > forgottenMs) this.#targets.delete(name);
      else if (now - probedMs >= waitMs) this.#probe(name, target);
    }
  }

  #probe(name: string, target: Target): void {
    if (target.probing) return;
    target.probing = true;
    const { probe = probePages, own } = this.#options;
    const answer =
      target.address === own ? Promise.resolve('it is the address of this instance') : probe(target.address);
    void answer.then((why) => {
      target.probing = false;
      target.probedMs = performance.now();
      if (!this.#closed && this.#targets.get(name) === target) this.#onProbed(name, target, why);
    });
  }

  #onProbed(name: string, target: Target, why: string | undefined): void {
    target.failures = why === undefined ? 0 : target.failures + 1;
    const before = target.why;
    if (why === undefined || target.failures > 1) target.why = why;
    const where = `the KV pages of instance ${name} at ${target.address}`;
    if (before === undefined && target.why !== undefined)
      this.#options.log(
        `Cannot reach ${where}: ${target.why}: start it with --pages-host and an address that this host reaches`,
      );
    else if (before !== undefined && target.why === undefined) this.#options.log(`Reached ${where} again`);
  }
}

/** A session reports malformed announcements. */
function ignoreMalformed(handle: () => unknown): void {
  try {
    handle();
  } catch {}
}
