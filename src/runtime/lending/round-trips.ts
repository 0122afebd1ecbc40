// Measures the network round trip to the processes of other lenders: the time in which their hosts accept a connection.
import { connect, type Socket } from 'node:net';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import { nowUs } from '../threads/alarm.ts';

const intervalMs = 5_000;
const timeoutMs = 1_000;

/**
 * The kernel of the other host answers, so that steps there do not lengthen a sample. The connection is closed at once; its
 * listener ends it like one without a handshake.
 */
export class RoundTrips {
  readonly #measured: (peer: InstanceIndex, us: number) => void;
  readonly #addresses = new Map<InstanceIndex, string>();
  readonly #sockets = new Set<Socket>();
  readonly #timer: NodeJS.Timeout;

  constructor(measured: (peer: InstanceIndex, us: number) => void) {
    this.#measured = measured;
    this.#timer = setInterval(() => {
      for (const [peer, address] of this.#addresses) this.#measure(peer, address);
    }, intervalMs).unref();
  }

  /** @param address host and port */
  add(peer: InstanceIndex, address: string): void {
    this.#addresses.set(peer, address);
    this.#measure(peer, address);
  }

  remove(peer: InstanceIndex): void {
    this.#addresses.delete(peer);
  }

  #measure(peer: InstanceIndex, address: string): void {
    const colon = address.lastIndexOf(':');
    const startUs = nowUs();
    const socket = connect(Number(address.slice(colon + 1)), address.slice(0, colon));
    this.#sockets.add(socket);
    socket.unref();
    socket.setTimeout(timeoutMs, () => socket.destroy());
    // An unreachable peer has no sample: its figure becomes out of date.
    socket.on('error', () => {});
    socket.on('close', () => this.#sockets.delete(socket));
    socket.on('connect', () => {
      if (this.#addresses.get(peer) === address) this.#measured(peer, nowUs() - startUs);
      socket.destroy();
    });
  }

  close(): void {
    clearInterval(this.#timer);
    this.#addresses.clear();
    for (const socket of this.#sockets) socket.destroy();
  }
}
