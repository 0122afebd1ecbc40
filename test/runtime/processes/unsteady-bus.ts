// An end of a bus as a server far away gives it: its connection breaks, its records can be lost while all go on, or hang, as a test says.
import type { Bus, Snapshots } from '../../../src/runtime/bus/bus.ts';
import { HeldRecords } from './held-records.ts';

export class UnsteadyBus implements Bus {
  readonly #bus: Bus;
  readonly #watchers = new Set<(up: boolean) => void>();
  #up = true;
  readonly durable = false;
  readonly records: HeldRecords;
  readonly snapshots: Snapshots;

  constructor(bus: Bus) {
    this.#bus = bus;
    this.snapshots = bus.snapshots;
    this.records = new HeldRecords(bus.records);
  }

  connect(up: boolean): void {
    this.#up = up;
    for (const tell of this.#watchers) tell(up);
  }

  publish(subject: string, payload: Uint8Array): void {
    if (this.#up) this.#bus.publish(subject, payload);
  }

  subscribe(...[subject, hear]: Parameters<Bus['subscribe']>): () => void {
    return this.#bus.subscribe(subject, (...heard) => {
      if (this.#up) hear(...heard);
    });
  }

  flush(): Promise<void> {
    return this.#bus.flush();
  }

  watchConnection(tell: (up: boolean) => void): () => void {
    this.#watchers.add(tell);
    tell(this.#up);
    return () => this.#watchers.delete(tell);
  }

  async close(): Promise<void> {
    await this.#bus.close();
    this.connect(false);
  }
}

/** Removes the record, whichever process wrote it. */
export async function lose({ records }: Bus, key: string): Promise<void> {
  const stored = await records.read(key);
  if (stored !== undefined) await records.remove(key, stored.revision);
}
