// What the conductor of token instances takes fetching a prefix to cost: as fast as pages have been moving and SSDs have read, heard when a step ends.
import type { SsdConfig, SsdEnd } from '../../cost/ssd-times.ts';
import type { TransferConfig, TransferEnd } from '../../cost/transfer-times.ts';
import type { InstanceSnapshot } from '../../protocol/ports.ts';

/** Until pages have moved, and blocks have been read of SSD. */
const bytesPerSecondGuess = 2e9;
const ssdBytesPerSecondGuess = 1e9;
/** Of an instance that has nothing to do. */
const idleUs = 500;
/** Less than this says little of how fast it goes. */
const tellingBytes = 2 ** 20;

/** What an instance tells that says how fast it sends and reads, and when it hears. */
type Standing = Pick<InstanceSnapshot, 'running' | 'steps' | 'stepMsTotal'> & {
  readonly sent?: Pick<NonNullable<InstanceSnapshot['sent']>, 'bytes' | 'copySeconds'>;
  readonly tiers?: Pick<NonNullable<InstanceSnapshot['tiers']>, 'moved'> | undefined;
};

/** An instance hears what others ask between two steps. */
class LearnedEnd implements TransferEnd, SsdEnd {
  bytesPerSecond = bytesPerSecondGuess;
  ssdBytesPerSecond = ssdBytesPerSecondGuess;
  us = idleUs;
  #steps = 0;
  #stepMs = 0;

  observe({ sent, running, steps, stepMsTotal, tiers }: Standing): void {
    const { ssdReadBytes = 0, ssdReadSeconds = 0 } = tiers?.moved ?? {};
    if (ssdReadBytes >= tellingBytes && ssdReadSeconds > 0) this.ssdBytesPerSecond = ssdReadBytes / ssdReadSeconds;
    if (sent !== undefined && sent.bytes >= tellingBytes && sent.copySeconds > 0)
      this.bytesPerSecond = sent.bytes / sent.copySeconds;
    if (steps > this.#steps) {
      const meanUs = (1000 * (stepMsTotal - this.#stepMs)) / (steps - this.#steps);
      this.us = idleUs + (running > 0 ? meanUs : 0);
    } else if (running === 0) this.us = idleUs;
    this.#steps = steps;
    this.#stepMs = stepMsTotal;
  }
}

export class LearnedTransfers {
  readonly config: TransferConfig;
  readonly ssds: SsdConfig;
  readonly #ends: readonly LearnedEnd[];

  constructor(instances: number, bytesPerToken: number) {
    this.#ends = Array.from({ length: instances }, () => new LearnedEnd());
    this.config = { ends: this.#ends, linkBytesPerSecond: undefined, bytesPerToken };
    this.ssds = { ends: this.#ends, bytesPerToken };
  }

  observe(instance: number, snapshot: Standing): void {
    this.#ends[instance]?.observe(snapshot);
  }
}
