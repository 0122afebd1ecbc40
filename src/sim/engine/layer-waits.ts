// The blocks that a running step waits for: prefixes that arrive layer by layer, each with a timeout.
import { type LayeredStep, layerWiseEndUs } from '../../core/cost/layer-wise-arrival.ts';
import type { LoadSource } from '../../core/protocol/events.ts';
import type { PendingBlocks } from '../../core/transfer/prefix-fetch/prefix-loads.ts';

/** A request that the step waits for: some sources of its blocks have not delivered. */
interface Wait {
  readonly place: number;
  readonly id: string;
  readonly sources: Set<LoadSource>;
  readonly untilUs: number;
}

/** The start of a delivery of a request's blocks before `to`. */
interface Arrival {
  readonly us: number;
  readonly to: number;
}

export class LayerWaits {
  readonly #arriving = new Map<string, Arrival>();
  #waits: Wait[] = [];
  #failedSequences: number[] = [];

  /** True when the step waits for no blocks. */
  get isOver(): boolean {
    return this.#waits.length === 0;
  }

  /** Places of the requests with missing blocks; undefined: none. */
  get failedSequences(): readonly number[] | undefined {
    return this.#failedSequences.length === 0 ? undefined : this.#failedSequences;
  }

  /** The earliest timeout. */
  get nextUs(): number {
    return this.#waits.reduce((nextUs, { untilUs }) => Math.min(nextUs, untilUs), Number.POSITIVE_INFINITY);
  }

  /** A step begins. */
  begin(nowUs: number, pending: readonly PendingBlocks[]): void {
    for (const { place, id, sources, withinUs } of pending) {
      if (sources === undefined) this.#failedSequences.push(place);
      else if (sources.length > 0)
        this.#waits.push({ place, id, sources: new Set(sources), untilUs: nowUs + withinUs });
    }
  }

  /** The step has ended or is aborted. */
  clear(): void {
    this.#waits = [];
    this.#failedSequences = [];
  }

  /** Blocks of a request begin to arrive. */
  arriving(nowUs: number, id: string, source: LoadSource, to: number): void {
    this.#arriving.set(keyOf(id, source), { us: nowUs, to });
  }

  /** Blocks have arrived up to block `to`. Returns the earliest end of the step that this allows. */
  arrived(nowUs: number, id: string, source: LoadSource, to: number, step: LayeredStep): number {
    const arrival = this.#arriving.get(keyOf(id, source));
    this.#arriving.delete(keyOf(id, source));
    const wait = this.#waits.find((each) => each.id === id && each.sources.delete(source));
    if (wait === undefined) return 0;
    if (to < (arrival?.to ?? to)) this.#fail(wait);
    else if (wait.sources.size === 0) this.#waits = this.#waits.filter((each) => each !== wait);
    return layerWiseEndUs(step, { beganUs: arrival?.us ?? nowUs, endedUs: nowUs });
  }

  /** The blocks are not required any more. */
  forget(id: string, source: LoadSource): void {
    this.#arriving.delete(keyOf(id, source));
  }

  /** Fails the waits that time out by now. */
  expire(nowUs: number): void {
    for (const wait of [...this.#waits]) if (wait.untilUs <= nowUs) this.#fail(wait);
  }

  #fail(wait: Wait): void {
    this.#waits = this.#waits.filter((each) => each !== wait);
    this.#failedSequences.push(wait.place);
  }
}

function keyOf(id: string, source: LoadSource): string {
  return `${source} ${id}`;
}
