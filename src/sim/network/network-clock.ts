// When the simulated network is looked at next: one event in the heap stands for all its flows.
import type { EventHeap } from '../engine/event-heap.ts';
import type { Streams } from '../engine/streams.ts';
import type { Network } from './network.ts';

export class NetworkClock {
  readonly #network: Network;
  readonly #streams: Streams;
  readonly #heap: EventHeap;
  readonly #key: number;
  readonly #checking: boolean;
  #nextUs = Number.POSITIVE_INFINITY;

  /** @param key of its event in the heap */
  constructor(network: Network, streams: Streams, heap: EventHeap, key: number, checking: boolean) {
    this.#network = network;
    this.#streams = streams;
    this.#heap = heap;
    this.#key = key;
    this.#checking = checking;
  }

  /** All that changes at one time has changed. */
  refresh(): void {
    this.#network.refresh();
    if (this.#checking) this.#network.check();
    this.#schedule();
  }

  /** Its event is due. */
  due(nowUs: number): void {
    // Else an earlier time has taken its place since.
    if (this.#nextUs !== nowUs) return;
    this.#nextUs = Number.POSITIVE_INFINITY;
    this.#streams.due(nowUs);
    this.#schedule();
  }

  #schedule(): void {
    const { nextUs } = this.#network;
    if (nextUs >= this.#nextUs) return;
    this.#nextUs = nextUs;
    this.#heap.push(nextUs, this.#key);
  }
}
