// An instance's SSD in simulated time: reads in the order in which they were asked for, and writes beside them.

export interface SsdRates {
  readonly readBytesPerSecond: number;
  readonly writeBytesPerSecond: number;
}

export class SimulatedSsd {
  readBytes = 0;
  writtenBytes = 0;
  readonly #rates: SsdRates;
  #readsUntilUs = 0;
  #writesUntilUs = 0;

  constructor(rates: SsdRates) {
    this.#rates = rates;
  }

  /** When so many bytes more have been read. */
  read(nowUs: number, bytes: number): number {
    this.readBytes += bytes;
    this.#readsUntilUs =
      Math.max(nowUs, this.#readsUntilUs) + Math.ceil((bytes * 1e6) / this.#rates.readBytesPerSecond);
    return this.#readsUntilUs;
  }

  /** When so many bytes more have been written. */
  write(nowUs: number, bytes: number): number {
    this.writtenBytes += bytes;
    this.#writesUntilUs =
      Math.max(nowUs, this.#writesUntilUs) + Math.ceil((bytes * 1e6) / this.#rates.writeBytesPerSecond);
    return this.#writesUntilUs;
  }
}
