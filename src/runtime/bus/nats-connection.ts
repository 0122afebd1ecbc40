// Connects to NATS servers: URLs, TLS, credentials, and the refusal of servers beyond loopback that accept any client.
import { createSocket } from 'node:dgram';
import { lookup } from 'node:dns/promises';
import { readFileSync } from 'node:fs';
import { BlockList, isIP } from 'node:net';
import { checkServerIdentity, type PeerCertificate } from 'node:tls';
import {
  type ConnectionOptions,
  connect,
  credsAuthenticator,
  type NatsConnection,
  nkeyAuthenticator,
  type ServerInfo,
  type TlsOptions,
} from '@nats-io/transport-node';

const reconnectWaitMs = 250;
const connectTimeoutMs = 5_000;
/** The connection counts as lost after two unanswered pings, which detects a cut link. */
const pingMs = 2_000;

/** The NATS servers of a cluster, and how a client proves its identity to them. Files are in PEM, or as `nsc` writes them. */
export interface NatsServers {
  /**
   * nats://HOST:PORT or tls://HOST:PORT, with a token or user:password before the host if the servers require one;
   * several are separated by commas. With one tls:// URL all connections use TLS.
   */
  readonly urls: string;
  /** Certificates that sign those of the servers; undefined: the ones of the system. Requires TLS. */
  readonly caFile?: string | undefined;
  /** Certificate and key of this client. */
  readonly certFile?: string | undefined;
  readonly keyFile?: string | undefined;
  /** Seed of an nkey. */
  readonly nkeyFile?: string | undefined;
  /** JWT and seed of a user. */
  readonly credsFile?: string | undefined;
  /** Servers beyond loopback need no authentication. */
  readonly insecure?: boolean | undefined;
  /** Servers that store each record; undefined: 1. */
  readonly replicas?: number | undefined;
}

/** @throws Error in one line when no server can be reached, or it refuses, or it accepts any client */
export async function connectServers(servers: NatsServers): Promise<NatsConnection> {
  const options = connectionOptions(servers);
  const connection = await connect({
    ...options,
    maxReconnectAttempts: -1,
    reconnectTimeWait: reconnectWaitMs,
    timeout: connectTimeoutMs,
    pingInterval: pingMs,
    maxPingOut: 2,
    // The caller handles a first failure.
    waitOnFirstConnect: false,
  }).catch((error: unknown) => {
    throw new Error(`Cannot connect to NATS at ${redacted(servers.urls)}: ${messageOf(error)}`);
  });
  if (servers.insecure === true || isAuthenticated(servers, connection.info)) return connection;
  const open = await firstBeyondLoopback(servers.urls);
  if (open === undefined) return connection;
  await connection.close();
  throw new Error(
    `Cannot use NATS at ${open}: it accepts clients without authentication, and any of them could control the cluster: give the server users or a token, or use --insecure`,
  );
}

/** @throws Error in one line for a file that cannot be read, or URLs with different credentials */
export function connectionOptions(servers: NatsServers): ConnectionOptions {
  const urls = urlsOf(servers.urls);
  const tls = urls.some(({ protocol }) => protocol === 'tls:') || (servers.caFile ?? servers.certFile) !== undefined;
  return {
    servers: urls.map(({ protocol, host }) => `${protocol}//${host}`),
    ...credentials(servers),
    ...(tls && { tls: tlsOptions(servers, urls) }),
  };
}

/** The URLs without their credentials. */
export function redacted(urls: string): string {
  return urls.replace(/\/\/[^/@,]*@/g, '//');
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function urlsOf(urls: string): readonly URL[] {
  return urls.split(',').map((url) => new URL(url));
}

function credentials({ urls, nkeyFile, credsFile }: NatsServers): ConnectionOptions {
  if (nkeyFile !== undefined) return { authenticator: nkeyAuthenticator(seedOf(contents(nkeyFile))) };
  if (credsFile !== undefined) return { authenticator: credsAuthenticator(contents(credsFile)) };
  const given = urlsOf(urls).filter(({ username }) => username !== '');
  const [first] = given;
  if (first === undefined) return {};
  if (given.some(({ username, password }) => username !== first.username || password !== first.password))
    throw new Error(`Cannot connect to NATS at ${redacted(urls)}: the URLs have different credentials`);
  const [user, pass] = [decodeURIComponent(first.username), decodeURIComponent(first.password)];
  return pass === '' ? { token: user } : { user, pass };
}

/** The seed alone: its file may have comments. */
function seedOf(text: Uint8Array): Uint8Array {
  const seed = /\bSU[A-Z2-7]{56}\b/.exec(new TextDecoder().decode(text))?.[0];
  return seed === undefined ? text : new TextEncoder().encode(seed);
}

function contents(path: string): Uint8Array {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new Error(`Cannot connect to NATS: ${messageOf(error)}`);
  }
}

/** TLS is required: the client refuses a server that does not offer it. */
function tlsOptions({ caFile, certFile, keyFile }: NatsServers, urls: readonly URL[]): TlsOptions {
  const hosts = urls.map(({ hostname }) => hostname.replace(/^\[|\]$/g, ''));
  const text = (path: string | undefined): string | undefined =>
    path === undefined ? undefined : new TextDecoder().decode(contents(path));
  const options = {
    ca: text(caFile),
    cert: text(certFile),
    key: text(keyFile),
    // The client gives no name for a server at an IP address.
    checkServerIdentity: (name: string, certificate: PeerCertificate) => {
      const names = hosts.some((host) => isIP(host) !== 0) ? hosts : [name];
      const errors = names.map((each) => checkServerIdentity(each, certificate));
      return errors.includes(undefined) ? undefined : errors[0];
    },
  };
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

/** Whether the server has checked an identity of this client. */
function isAuthenticated({ urls, nkeyFile, credsFile, certFile }: NatsServers, info: ServerInfo | undefined): boolean {
  const gaveSecret = (nkeyFile ?? credsFile) !== undefined || urlsOf(urls).some(({ username }) => username !== '');
  if (info?.auth_required === true) return gaveSecret || certFile !== undefined;
  return info?.tls_verify === true && certFile !== undefined;
}

/** The first server that other hosts may reach. */
async function firstBeyondLoopback(urls: string): Promise<string | undefined> {
  for (const { protocol, host, hostname } of urlsOf(urls)) {
    const name = hostname.replace(/^\[|\]$/g, '');
    const addresses = await lookup(name, { all: true }).catch(() => []);
    if (addresses.length === 0 || !addresses.every(({ address }) => isLoopbackAddress(address)))
      return `${protocol}//${host}`;
  }
  return undefined;
}

/** The address of this host on the interface that reaches the NATS servers; loopback if they run here. @throws Error in one line */
export async function addressTowards(urls: string): Promise<string> {
  let why = 'no server has an address';
  for (const { hostname, port } of urlsOf(urls)) {
    try {
      const { address, family } = await lookup(hostname.replace(/^\[|\]$/g, ''));
      return await routedAddress(address, family, Number(port || 4222));
    } catch (error) {
      why = messageOf(error);
    }
  }
  throw new Error(`Cannot find the address of this host towards ${redacted(urls)}: ${why}: give --pages-host`);
}

/** A connected UDP socket has the local address of the route; nothing is sent. */
function routedAddress(address: string, family: number, port: number): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = createSocket(family === 6 ? 'udp6' : 'udp4');
    socket.once('error', (error) => {
      socket.close();
      reject(error);
    });
    socket.connect(port, address, () => {
      const own = socket.address().address;
      socket.close();
      resolve(own);
    });
  });
}

const loopback = new BlockList();
loopback.addSubnet('127.0.0.0', 8);
loopback.addAddress('::1', 'ipv6');

/** True for an IP address that only this host reaches. */
export function isLoopbackAddress(address: string): boolean {
  const version = isIP(address);
  return version !== 0 && loopback.check(address, version === 6 ? 'ipv6' : 'ipv4');
}
