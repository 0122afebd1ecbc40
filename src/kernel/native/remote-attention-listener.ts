// Remote attention between processes, over shared memory or TCP: the listener of a server, and clients of other
// processes' servers.
import { createHash } from 'node:crypto';
import type { KvPoolHandle, RemoteAttentionHandle } from '../backend.ts';
import { loadNative, type NativeModule, type Transport, transportCodes } from './addon.ts';

export interface RemoteAttentionListenerOptions {
  /** The address to listen at. */
  readonly host: string;
  /** 0 or undefined: a free port. */
  readonly port?: number | undefined;
  /** The secret of the cluster; clients without it are refused. */
  readonly token: string;
  /** The transports that it accepts, as between messengers. */
  readonly transport?: Transport | undefined;
}

export class RemoteAttentionListener {
  /** Host and port for `createRemoteAttentionClient`. */
  readonly address: string;
  readonly #native: NativeModule;
  readonly #listener: number;

  /** @throws if the kernels are not compiled, or it cannot listen at the address */
  constructor(
    server: RemoteAttentionHandle,
    { host, port = 0, token, transport = 'auto' }: RemoteAttentionListenerOptions,
  ) {
    this.#native = nativeOf('Cannot listen for remote attention');
    const key = keyOf(token);
    this.#listener = this.#native.openRemoteAttentionListener(server, host, port, transportCodes[transport], key);
    this.address = `${host}:${this.#native.remoteAttentionListenerPort(this.#listener)}`;
  }

  /** Closes its connections and refuses the queries in progress. */
  close(): void {
    this.#native.closeRemoteAttentionListener(this.#listener);
  }
}

/**
 * A client of the server behind the listener at an address, for `Step.remote`. The server's pages have the form of the
 * pool's. The client connects at the first query; `freeRemoteAttentionServer` frees it.
 */
export function createRemoteAttentionClient(
  pool: KvPoolHandle,
  address: string,
  token: string,
  transport: Transport = 'auto',
): RemoteAttentionHandle {
  const cut = address.lastIndexOf(':');
  const native = nativeOf('Cannot connect to a remote attention server');
  const [host, port] = [address.slice(0, cut), Number(address.slice(cut + 1))];
  return native.createRemoteAttentionClient(pool, host, port, transportCodes[transport], keyOf(token));
}

function nativeOf(what: string): NativeModule {
  const native = loadNative();
  if (native === undefined) throw new Error(`${what}: the native kernels are not compiled`);
  return native;
}

/** The prefix is part of the protocol. */
function keyOf(token: string): Uint8Array {
  return Uint8Array.from(createHash('sha256').update('kvasir guests 1\0').update(token).digest());
}
