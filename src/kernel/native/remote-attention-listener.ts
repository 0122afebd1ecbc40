// Guest rooms of other processes, over shared memory or tcp: a door where debtors of other processes reach a room, and rooms behind the doors of others.
import { createHash } from 'node:crypto';
import type { KvPoolHandle, RemoteAttentionHandle } from '../backend.ts';
import { loadNative, type NativeModule, type Transport, transportCodes } from './addon.ts';

export interface GuestDoorOptions {
  /** Where this room is reached. */
  readonly host: string;
  /** 0 or undefined: one that is free. */
  readonly port?: number | undefined;
  /** The secret of the cluster; peers without it are refused. */
  readonly token: string;
  /** How it is reached, as between messengers. */
  readonly transport?: Transport | undefined;
}

export class NativeGuestDoor {
  /** By which `reachGuestRoom` finds it: host and port. */
  readonly address: string;
  readonly #native: NativeModule;
  readonly #door: number;

  /** @throws if the kernels are not compiled, or the address cannot be listened at */
  constructor(room: RemoteAttentionHandle, { host, port = 0, token, transport = 'auto' }: GuestDoorOptions) {
    this.#native = nativeOf('Cannot open a guest door');
    this.#door = this.#native.openRemoteAttentionListener(room, host, port, transportCodes[transport], keyOf(token));
    this.address = `${host}:${this.#native.remoteAttentionListenerPort(this.#door)}`;
  }

  /** Cuts the connections over it: what is open there is refused. */
  close(): void {
    this.#native.closeRemoteAttentionListener(this.#door);
  }
}

/** A room of `Step.remote`, behind the door at an address; over pages like those of the pool. Frees like any room. Connects when it is first asked. */
export function reachGuestRoom(
  pool: KvPoolHandle,
  address: string,
  token: string,
  transport: Transport = 'auto',
): RemoteAttentionHandle {
  const cut = address.lastIndexOf(':');
  const native = nativeOf('Cannot reach a guest room');
  const [host, port] = [address.slice(0, cut), Number(address.slice(cut + 1))];
  return native.createRemoteAttentionClient(pool, host, port, transportCodes[transport], keyOf(token));
}

function nativeOf(what: string): NativeModule {
  const native = loadNative();
  if (native === undefined) throw new Error(`${what}: the native kernels are not compiled`);
  return native;
}

function keyOf(token: string): Uint8Array {
  return Uint8Array.from(createHash('sha256').update('kvasir guests 1\0').update(token).digest());
}
