// The native messenger to pools of other processes and hosts: native threads send pages over shared
// memory, TCP or RDMA.
import { createHash } from 'node:crypto';
import type { MessengerCounts } from '../../util/counts.ts';
import type { KvPoolHandle } from '../backend.ts';
import { type NativeModule, type RemoteTarget, type Transport, transportCodes } from './addon.ts';
import { NativeReceiveBuffers } from './receive-buffers.ts';

/** Near the best size for loopback and fast networks, as `kvasir bench messenger` measures it. */
const frameBytesDefault = 2 ** 20;
/** Longer than a short network failure, and far shorter than a client's timeout. */
const giveUpMsDefault = 15_000;
const nothing = new Int32Array();

export interface RemoteMessengerOptions {
  /** The address at which this pool receives pages. */
  readonly host: string;
  /** 0 or undefined: a free port. */
  readonly port?: number | undefined;
  /** The secret of the cluster; peers without it are refused. */
  readonly token: string;
  /** Transport in both directions: 'auto' uses shared memory within this host, else TCP. 'rdma' without a device is TCP. */
  readonly transport?: Transport | undefined;
  readonly frameBytes?: number | undefined;
  /** Time from the first failure to an address until its transfers are given up. */
  readonly giveUpMs?: number | undefined;
}

/** Implements `Messenger` of `runtime`. The handle of a receive buffer is its address for senders. */
export class NativeRemoteMessenger {
  readonly #buffers: NativeReceiveBuffers;
  readonly #native: NativeModule;
  readonly #pool: KvPoolHandle;
  readonly #messenger: number;
  readonly #receiver: number;
  readonly #host: string;
  readonly #port: number;
  readonly #addresses = new Map<number, string>();

  /**
   * @param wake called in this thread, after receive buffers have become complete
   * @throws if the kernels are not compiled, or it cannot listen at the address
   */
  constructor(pool: KvPoolHandle, options: RemoteMessengerOptions, wake: () => void) {
    const {
      host,
      port = 0,
      token,
      transport = 'auto',
      frameBytes = frameBytesDefault,
      giveUpMs = giveUpMsDefault,
    } = options;
    const key = createHash('sha256').update('kvasir pages 1\0').update(token).digest();
    const transportCode = transportCodes[transport];
    this.#buffers = new NativeReceiveBuffers(pool, wake);
    this.#native = this.#buffers.native;
    this.#pool = pool;
    this.#host = host;
    this.#receiver = this.#native.createReceiver(pool, host, port, transportCode, Uint8Array.from(key));
    this.#port = this.#native.receiverPort(this.#receiver);
    this.#messenger = this.#native.createRemoteSender(pool, transportCode, Uint8Array.from(key), frameBytes, giveUpMs);
  }

  get address(): string {
    return `${this.#host}:${this.#port}`;
  }

  get counts(): MessengerCounts {
    const { broken, givenUp, ...sent } = this.#native.remoteSenderCounts(this.#messenger);
    const received = this.#native.receiverCounts(this.#receiver);
    return { ...sent, faults: broken + givenUp + received.refused + received.broken };
  }

  get nextPoolStep(): number {
    return this.#native.nextStep(this.#pool);
  }

  arrivals(address: string, blocks: number): number | undefined {
    return this.#buffers.arrivals(partsOf(address).buffer, blocks);
  }

  open(pages: Int32Array, layers?: number): string {
    const buffer = this.#buffers.open(pages, layers);
    const key = this.#native.registerReceiveBuffer(this.#receiver, buffer);
    const address = `${this.address}/${buffer}/${key}/${pages.length}`;
    this.#addresses.set(buffer, address);
    return address;
  }

  /** The receive buffer itself, for pulls of received pages. */
  localBuffer(address: string): number {
    return partsOf(address).buffer;
  }

  close(address: string): void {
    const { buffer } = partsOf(address);
    this.#addresses.delete(buffer);
    this.#buffers.close(buffer);
  }

  received(): readonly string[] {
    return this.#buffers.completed().flatMap((buffer) => this.#addresses.get(buffer) ?? []);
  }

  unreachable(): readonly string[] {
    return this.#native.takeGivenUp(this.#messenger);
  }

  send(address: string, step: number, descriptors: Int32Array, last: boolean, filling = nothing): void {
    this.#native.sendPagesRemote(...this.#target(address), step, descriptors, Number(last), filling);
  }

  stop(address: string): void {
    this.#native.stopSendingRemote(...this.#target(address));
  }

  pending(address: string): number {
    return this.#native.pendingPagesRemote(...this.#target(address));
  }

  #target(address: string): RemoteTarget {
    const { host, port, buffer, key, slots } = partsOf(address);
    return [this.#messenger, host, port, buffer, key, slots];
  }

  transportTo(address: string): 'shared' | 'tcp' | 'rdma' | undefined {
    const { host, port } = partsOf(address);
    const code = this.#native.transportTo(this.#messenger, host, port);
    return (['shared', 'tcp', 'rdma'] as const).find((each) => transportCodes[each] === code);
  }

  /** Ends its connections and threads. */
  free(): void {
    this.#native.freeRemoteSender(this.#messenger);
    this.#native.freeReceiver(this.#receiver);
    this.#buffers.free();
  }
}

/** @throws Error for an invalid address, which another process has sent */
function partsOf(address: string) {
  const [, host = '', port, buffer, key = '', slots] =
    /^([^/]{1,255}):(\d{1,5})\/(\d{1,10})\/([0-9a-f]{16})\/(\d{1,9})$/.exec(address) ?? [];
  if (slots === undefined)
    throw new Error(`Cannot send pages: not the address of a receive buffer: '${address.slice(0, 80)}'`);
  return { host, port: Number(port), buffer: Number(buffer), key, slots: Number(slots) };
}
