// Restores stored records that a server may have lost: after a reconnection, or when another process misses one.
import type { Bus, Subject } from '../bus/bus.ts';

const missing = 'missing';
/** After a possible loss, running processes have reconnected and answered within this time. */
export const lostListenMs = 1_000;
/** Backoff between failed checks: doubles each time, and stays below the wait of a process that misses the record. */
const retryMsMin = 250;
const retryMsMax = 4_000;

/** Makes all running processes check the records that they rely on. */
export function announceMissing(bus: Bus): void {
  bus.publish(missing, new Uint8Array());
}

/** Whether a message arrives on the subject within `ms` milliseconds. Running processes restore their records meanwhile. */
export function hasTraffic(bus: Bus, subject: Subject, ms: number): Promise<boolean> {
  return new Promise((resolve) => {
    const decide = (received: boolean): void => {
      stop();
      clearTimeout(timer);
      resolve(received);
    };
    const onMessage = (): void => decide(true);
    // Processes with another token run as well.
    const stop = bus.observe?.(subject, onMessage) ?? bus.subscribe(subject, onMessage);
    const timer = setTimeout(() => decide(false), ms);
    announceMissing(bus);
  });
}

/** A stored record that this process restores if it is lost. */
export interface ReconciledRecord {
  /** Name of the record in log lines. */
  readonly what: string;
  /** Reads the record, and writes it again if it is lost. */
  check(): Promise<void>;
  /** Called when checks fail, or fail for another reason than before, and when they succeed again. */
  log(message: string): void;
}

/** Checks a record whenever it may have been lost: one check at a time, repeated with backoff if it fails. Ends with the bus. */
export class RecordReconciler {
  readonly #record: ReconciledRecord;
  readonly #unsubscribe: readonly (() => void)[];
  #up = true;
  #stopped = false;
  #requested = false;
  /** Current checks, until none is requested. */
  #running: Promise<void> | undefined;
  #delayMs = retryMsMin;
  #wake: () => void = () => {};
  /** Why the last check failed. */
  #why: string | undefined;

  constructor(bus: Bus, record: ReconciledRecord) {
    this.#record = record;
    this.#unsubscribe = [
      bus.subscribe(missing, () => this.check()),
      bus.watchConnection((up) => this.#onConnection(up)),
    ];
  }

  /** Requests a check. A backoff in progress is not shortened: a process may report a missing record often. */
  check(): void {
    this.#requested = true;
    if (this.#running === undefined && !this.#isOver) this.#running = this.#run();
  }

  #onConnection(up: boolean): void {
    const changed = up !== this.#up;
    this.#up = up;
    if (!changed) return;
    this.#delayMs = retryMsMin;
    this.#wake();
    if (up) this.check();
  }

  /** Resolves when no check runs any more. */
  async stop(): Promise<void> {
    for (const unsubscribe of this.#unsubscribe) unsubscribe();
    this.#stopped = true;
    this.#wake();
    await this.#running;
  }

  get #isOver(): boolean {
    return this.#stopped || !this.#up;
  }

  async #run(): Promise<void> {
    while (this.#requested && !this.#isOver) {
      this.#requested = false;
      const why = await this.#check();
      this.#requested ||= why !== undefined;
      if (this.#isOver) break;
      this.#logChange(why);
      if (why !== undefined) await this.#wait();
    }
    this.#running = undefined;
  }

  /** Why the check failed, if it did. */
  async #check(): Promise<string | undefined> {
    try {
      await this.#record.check();
      return undefined;
    } catch (error) {
      return messageOf(error);
    }
  }

  #logChange(why: string | undefined): void {
    const { what } = this.#record;
    if (why !== this.#why)
      this.#record.log(why === undefined ? `Can check ${what} again` : `Cannot check ${what}: ${why}`);
    this.#why = why;
    if (why === undefined) this.#delayMs = retryMsMin;
  }

  /** Backoff; a change of the connection ends it. */
  #wait(): Promise<void> {
    const delayMs = this.#delayMs;
    this.#delayMs = Math.min(retryMsMax, 2 * delayMs);
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, delayMs).unref();
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
