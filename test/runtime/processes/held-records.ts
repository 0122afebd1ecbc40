// Records of a bus that hang where a test says so: what is asked waits on its way there, or what is answered on its way back, until it is let go.
import type { Records } from '../../../src/runtime/bus/bus.ts';

/** Hold no question, hold them on their way there, or their answers on the way back. */
type Way = 'through' | 'there' | 'back';

export class HeldRecords implements Records {
  readonly #records: Records;
  /** In the order in which they were asked: as one connection has it. */
  #held: { readonly letGo: () => void; readonly lose: () => void }[] = [];
  way: Way = 'through';

  constructor(records: Records) {
    this.#records = records;
  }

  get held(): number {
    return this.#held.length;
  }

  letGo(): void {
    this.way = 'through';
    for (const { letGo } of this.#held.splice(0)) letGo();
  }

  /** Their writers will never learn the outcome. */
  lose(): void {
    this.way = 'through';
    for (const { lose } of this.#held.splice(0)) lose();
  }

  read(key: string): ReturnType<Records['read']> {
    return this.#ask(() => this.#records.read(key));
  }

  write(...asked: Parameters<Records['write']>): ReturnType<Records['write']> {
    return this.#ask(() => this.#records.write(...asked));
  }

  remove(...asked: Parameters<Records['remove']>): ReturnType<Records['remove']> {
    return this.#ask(() => this.#records.remove(...asked));
  }

  async #ask<T>(ask: () => Promise<T>): Promise<T> {
    if (this.way === 'there') await this.#hold();
    const back = this.way === 'back';
    const answer = await ask();
    if (back) await this.#hold();
    return answer;
  }

  #hold(): Promise<void> {
    return new Promise((letGo, reject) => {
      this.#held.push({ letGo, lose: () => reject(new Error('Cannot hear the answer')) });
    });
  }
}
