// Records of a bus that stall when a test requires it: requests before they reach the store, or responses before they reach the caller.
import type { Records } from '../../../src/runtime/bus/bus.ts';

/** What stalls. */
type Stall = 'nothing' | 'requests' | 'responses';

export class StalledRecords implements Records {
  readonly #records: Records;
  /** In the order of the calls, as on one connection. */
  #stalled: { readonly release: () => void; readonly fail: () => void }[] = [];
  stall: Stall = 'nothing';

  constructor(records: Records) {
    this.#records = records;
  }

  get stalled(): number {
    return this.#stalled.length;
  }

  /** Continues all stalled calls. */
  release(): void {
    this.stall = 'nothing';
    for (const { release } of this.#stalled.splice(0)) release();
  }

  /** Rejects all stalled calls: the callers do not receive the results. */
  fail(): void {
    this.stall = 'nothing';
    for (const { fail } of this.#stalled.splice(0)) fail();
  }

  read(key: string): ReturnType<Records['read']> {
    return this.#call(() => this.#records.read(key));
  }

  write(...args: Parameters<Records['write']>): ReturnType<Records['write']> {
    return this.#call(() => this.#records.write(...args));
  }

  remove(...args: Parameters<Records['remove']>): ReturnType<Records['remove']> {
    return this.#call(() => this.#records.remove(...args));
  }

  async #call<T>(call: () => Promise<T>): Promise<T> {
    if (this.stall === 'requests') await this.#wait();
    const stallsResponse = this.stall === 'responses';
    const result = await call();
    if (stallsResponse) await this.#wait();
    return result;
  }

  #wait(): Promise<void> {
    return new Promise((release, reject) => {
      this.#stalled.push({ release, fail: () => reject(new Error('Cannot receive the response')) });
    });
  }
}
