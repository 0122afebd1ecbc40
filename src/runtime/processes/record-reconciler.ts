// When records may have been lost while processes go on: the connection is back, or somebody misses one.
import type { Bus, Subject } from '../bus/bus.ts';

const missing = 'missing';
/** Where a record may have been lost: those who are there are back by then, and asked. */
export const lostListenMs = 1_000;
/** Between two tries where a record cannot be asked for: twice as long each time, and shorter than whoever misses it waits. */
const retryMsMin = 250;
const retryMsMax = 4_000;

/** Those who are there look after the records that they rely on. */
export function announceMissing(bus: Bus): void {
  bus.publish(missing, new Uint8Array());
}

/** Does anybody speak there? They look after their records meanwhile. */
export function hasTraffic(bus: Bus, subject: Subject, ms: number): Promise<boolean> {
  return new Promise((resolve) => {
    const decide = (heard: boolean): void => {
      stop();
      clearTimeout(timer);
      resolve(heard);
    };
    const stop = bus.subscribe(subject, () => decide(true));
    const timer = setTimeout(() => decide(false), ms);
    announceMissing(bus);
  });
}

export interface Upholding {
  /** Checks now, too. */
  check(): void;
  /** Resolves when nothing is checked, or written, any more. */
  stop(): Promise<void>;
}

export interface RecordReconciler {
  /** In words, for the log. */
  readonly what: string;
  readonly check: () => Promise<void>;
  /** Told when it cannot be checked, or for another reason than before, and when it can again. */
  readonly log: (message: string) => void;
}

/** Calls `check` whenever records may have been lost, one call at a time, and again ever later where it fails. Ends with the bus. */
export function whenDoubtful(bus: Bus, record: RecordReconciler): Upholding {
  const upholder = new Upholder(record);
  const stops = [bus.subscribe(missing, () => upholder.doubt()), bus.watchConnection((up) => upholder.connect(up))];
  return {
    check: () => upholder.doubt(),
    stop: () => {
      for (const stop of stops) stop();
      return upholder.stop();
    },
  };
}

class Upholder {
  readonly #record: RecordReconciler;
  #up = true;
  #stopped = false;
  #wanted = false;
  /** Until it is checked as often as it is wanted. */
  #running: Promise<void> | undefined;
  #delayMs = retryMsMin;
  #wake: () => void = () => {};
  /** What it failed of last. */
  #why: string | undefined;

  constructor(record: RecordReconciler) {
    this.#record = record;
  }

  /** While it waits to be tried again, that is soon enough: whoever misses something may say so often. */
  doubt(): void {
    this.#wanted = true;
    if (this.#running === undefined && !this.#isOver) this.#running = this.#run();
  }

  connect(up: boolean): void {
    const changed = up !== this.#up;
    this.#up = up;
    if (!changed) return;
    this.#delayMs = retryMsMin;
    this.#wake();
    if (up) this.doubt();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#wake();
    await this.#running;
  }

  get #isOver(): boolean {
    return this.#stopped || !this.#up;
  }

  async #run(): Promise<void> {
    while (this.#wanted && !this.#isOver) {
      this.#wanted = false;
      const why = await this.#record.check().then(() => undefined, said);
      this.#wanted ||= why !== undefined;
      if (this.#isOver) break;
      this.#say(why);
      if (why !== undefined) await this.#wait();
    }
    this.#running = undefined;
  }

  #say(why: string | undefined): void {
    const { what, log } = this.#record;
    if (why !== this.#why) log(why === undefined ? `Looking after ${what} again` : `Cannot look after ${what}: ${why}`);
    this.#why = why;
    if (why === undefined) this.#delayMs = retryMsMin;
  }

  /** Longer each time, until it succeeds or the connection has changed. */
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

function said(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
