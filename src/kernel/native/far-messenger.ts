// The native messenger of a pool to pools of other processes and hosts: over shared memory or tcp, by native threads, straight into pages.
import { createHash } from 'node:crypto';
import type { MessengerCounts } from '../../util/counts.ts';
import type { KvPoolHandle } from '../backend.ts';
import { type FarTarget, type NativeModule, type Transport, transportCodes } from './addon.ts';
import { NativeLandings } from './receive-buffers.ts';

/** About what loopback and fast networks carry best: `kvasir bench messenger` shows others. */
const usualFrameBytes = 2 ** 20;
/** Long enough for an instance's network to come back, and far less than clients wait. */
const usualGiveUpMs = 15_000;
const nothing = new Int32Array();

export interface FarMessengerOptions {
  /** Where this pool's landings are reached. */
  readonly host: string;
  /** 0 or undefined: one that is free. */
  readonly port?: number | undefined;
  /** The secret of the cluster; peers without it are refused. */
  readonly token: string;
  /** How others are reached, and reach this: 'auto' over shared memory where they are on this host, else by tcp. */
  readonly transport?: Transport | undefined;
  readonly frameBytes?: number | undefined;
  /** After the first failure no transfer to that address is waited for. */
  readonly giveUpMs?: number | undefined;
}

/** A landing is named by its address, which says how others reach it. What each member does is told where it is asked for: `Messenger` of `live`. */
export class NativeFarMessenger {
  readonly #landings: NativeLandings;
  readonly #native: NativeModule;
  readonly #pool: KvPoolHandle;
  readonly #messenger: number;
  readonly #receiver: number;
  readonly #host: string;
  readonly #port: number;
  readonly #addresses = new Map<number, string>();

  /**
   * @param wake called in this thread, some time after landings have become complete
   * @throws if the kernels are not compiled, or the address cannot be listened at
   */
  constructor(pool: KvPoolHandle, options: FarMessengerOptions, wake: () => void) {
    const {
      host,
      port = 0,
      token,
      transport = 'auto',
      frameBytes = usualFrameBytes,
      giveUpMs = usualGiveUpMs,
    } = options;
    const key = createHash('sha256').update('kvasir pages 1\0').update(token).digest();
    const way = transportCodes[transport];
    this.#landings = new NativeLandings(pool, wake);
    this.#native = this.#landings.native;
    this.#pool = pool;
    this.#host = host;
    this.#receiver = this.#native.createReceiver(pool, host, port, way, Uint8Array.from(key));
    this.#port = this.#native.receiverPort(this.#receiver);
    this.#messenger = this.#native.createRemoteSender(pool, way, Uint8Array.from(key), frameBytes, giveUpMs);
  }

  get counts(): MessengerCounts {
    const { broken, givenUp, ...sent } = this.#native.remoteSenderCounts(this.#messenger);
    const received = this.#native.receiverCounts(this.#receiver);
    return { ...sent, faults: broken + givenUp + received.refused + received.broken };
  }

  get nextStep(): number {
    return this.#native.nextStep(this.#pool);
  }

  arrivals(address: string, blocks: number): number | undefined {
    return this.#landings.arrivals(partsOf(address).landing, blocks);
  }

  open(pages: Int32Array, layers?: number): string {
    const landing = this.#landings.open(pages, layers);
    const key = this.#native.registerReceiveBuffer(this.#receiver, landing);
    const address = `${this.#host}:${this.#port}/${landing}/${key}/${pages.length}`;
    this.#addresses.set(landing, address);
    return address;
  }

  close(address: string): void {
    const { landing } = partsOf(address);
    this.#addresses.delete(landing);
    this.#landings.close(landing);
  }

  received(): readonly string[] {
    return this.#landings.landed().flatMap((landing) => this.#addresses.get(landing) ?? []);
  }

  unreachable(): readonly string[] {
    return this.#native.takeGivenUp(this.#messenger);
  }

  send(address: string, step: number, parcels: Int32Array, last: boolean, filling = nothing): void {
    this.#native.sendPagesRemote(...this.#target(address), step, parcels, Number(last), filling);
  }

  stop(address: string): void {
    this.#native.stopSendingRemote(...this.#target(address));
  }

  pending(address: string): number {
    return this.#native.pendingPagesRemote(...this.#target(address));
  }

  #target(address: string): FarTarget {
    const { host, port, landing, key, places } = partsOf(address);
    return [this.#messenger, host, port, landing, key, places];
  }

  transportTo(address: string): 'shared' | 'tcp' | undefined {
    const { host, port } = partsOf(address);
    const way = this.#native.transportTo(this.#messenger, host, port);
    return (['shared', 'tcp'] as const).find((each) => transportCodes[each] === way);
  }

  /** Ends its connections and threads. */
  free(): void {
    this.#native.freeRemoteSender(this.#messenger);
    this.#native.freeReceiver(this.#receiver);
    this.#landings.free();
  }
}

/** @throws Error: what is no address has come from another process */
function partsOf(address: string) {
  const [, host = '', port, landing, key = '', places] =
    /^([^/]{1,255}):(\d{1,5})\/(\d{1,10})\/([0-9a-f]{16})\/(\d{1,9})$/.exec(address) ?? [];
  if (places === undefined) throw new Error(`Cannot send pages: no address of a landing: '${address.slice(0, 80)}'`);
  return { host, port: Number(port), landing: Number(landing), key, places: Number(places) };
}
