// An endpoint of a bus with a remote server: a test breaks its connection, removes its records, or stalls them.
import type { Bus, Snapshots } from '../../../src/runtime/bus/bus.ts';
import { StalledRecords } from './stalled-records.ts';

export class UnreliableBus implements Bus {
  readonly #bus: Bus;
  readonly #watchers = new Set<(up: boolean) => void>();
  #up = true;
  readonly durable = false;
  readonly records: StalledRecords;
  readonly snapshots: Snapshots;

  constructor(bus: Bus) {
    this.#bus = bus;
    this.snapshots = bus.snapshots;
    this.records = new StalledRecords(bus.records);
  }

  setConnected(up: boolean): void {
    this.#up = up;
    for (const onChange of this.#watchers) onChange(up);
  }

  publish(subject: string, payload: Uint8Array): void {
    if (this.#up) this.#bus.publish(subject, payload);
  }

  subscribe(...[subject, handler]: Parameters<Bus['subscribe']>): () => void {
    return this.#bus.subscribe(subject, (...message) => {
      if (this.#up) handler(...message);
    });
  }

  flush(): Promise<void> {
    return this.#bus.flush();
  }

  watchConnection(onChange: (up: boolean) => void): () => void {
    this.#watchers.add(onChange);
    onChange(this.#up);
    return () => this.#watchers.delete(onChange);
  }

  async close(): Promise<void> {
    await this.#bus.close();
    this.setConnected(false);
  }
}

/** Removes the record, whichever process wrote it. */
export async function removeRecord({ records }: Bus, key: string): Promise<void> {
  const stored = await records.read(key);
  if (stored !== undefined) await records.remove(key, stored.revision);
}
