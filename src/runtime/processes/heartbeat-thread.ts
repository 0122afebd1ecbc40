// Heartbeats while the event loop of a process stalls: a thread with a connection of its own repeats the last announcements.
import { Worker } from 'node:worker_threads';
import type { Bus, Subject } from '../bus/bus.ts';
import { encode } from '../wire/codec.ts';

/** Words of the shared memory. */
const [numberWord, progressWord] = [0, 1];
/** The event loop counts as hung after this time, and its last announcement is repeated no more. */
const hungMsDefault = 60_000;

/** Announcements of the roles of a process, numbered together with their repetitions. */
export interface HeartbeatRepeater {
  /** Number of the next announcement, above those of all repetitions so far. */
  nextNumber(): number;
  /** The event loop runs: this announcement has been published, and is repeated while none follows. */
  announced(subject: Subject, announcement: object): void;
  close(): void;
}

/** To the thread. */
interface Announced {
  readonly subject: Subject;
  readonly announcement: object;
}

export interface HeartbeatThreadData<Settings> {
  readonly settings: Settings;
  readonly words: Int32Array;
  readonly intervalMs: number;
  readonly hungMs: number;
}

export interface HeartbeatThreadOptions<Settings> {
  /** Module of the thread, which connects to the bus and calls `repeatHeartbeats`. */
  readonly entry: URL;
  readonly settings: Settings;
  /** Interval of announcements. */
  readonly intervalMs: number;
  readonly hungMs?: number;
  log(message: string): void;
}

/** The owner's side of the thread, which does not keep the process alive. If it ends, the process announces itself alone. */
export class HeartbeatThread implements HeartbeatRepeater {
  readonly #words = new Int32Array(new SharedArrayBuffer(8));
  readonly #worker: Worker;
  /** Closed, or its end is logged. */
  #closed = false;

  constructor({ entry, settings, intervalMs, hungMs = hungMsDefault, log }: HeartbeatThreadOptions<unknown>) {
    const workerData: HeartbeatThreadData<unknown> = { settings, words: this.#words, intervalMs, hungMs };
    this.#worker = new Worker(entry, { workerData });
    this.#worker.unref();
    const ended = (why: string): void => {
      if (!this.#closed) log(`The heartbeat thread has ended: ${why}: stalls of the event loop end requests`);
      this.#closed = true;
    };
    this.#worker.once('error', ({ message }) => ended(message));
    this.#worker.once('exit', (code) => ended(`exit code ${code}`));
  }

  /** Announcements and repetitions so far; shared with the thread. */
  get numbers(): Int32Array {
    return this.#words;
  }

  nextNumber(): number {
    return Atomics.add(this.#words, numberWord, 1) + 1;
  }

  announced(subject: Subject, announcement: object): void {
    Atomics.add(this.#words, progressWord, 1);
    this.#worker.postMessage({ subject, announcement } satisfies Announced);
  }

  close(): void {
    this.#closed = true;
    void this.#worker.terminate();
  }
}

/** The thread's side: what it publishes, and when. */
export class HeartbeatRepetition {
  readonly #bus: Pick<Bus, 'publish'>;
  readonly #data: HeartbeatThreadData<unknown>;
  /** By subject, one for each role of the process. */
  readonly #last = new Map<Subject, Announced>();
  #progress = -1;
  /** When the last progress was seen. */
  #progressMs = 0;

  constructor(bus: Pick<Bus, 'publish'>, data: HeartbeatThreadData<unknown>) {
    this.#bus = bus;
    this.#data = data;
  }

  announced(message: Announced): void {
    this.#last.set(message.subject, message);
  }

  /** Called at each interval. */
  tick(): void {
    const { words, intervalMs, hungMs } = this.#data;
    const progress = Atomics.load(words, progressWord);
    const nowMs = performance.now();
    if (progress !== this.#progress) this.#progressMs = nowMs;
    this.#progress = progress;
    const stalledMs = nowMs - this.#progressMs;
    // One interval without an announcement is no stall: the two timers are not in phase.
    const isStalled = stalledMs >= 1.5 * intervalMs && stalledMs <= hungMs;
    if (!isStalled) return;
    for (const { subject, announcement } of this.#last.values()) {
      const number = Atomics.add(words, numberWord, 1) + 1;
      this.#bus.publish(subject, encode({ ...announcement, number }));
    }
  }
}

/** Runs the thread: `port` receives the announcements of its owner. */
export function repeatHeartbeats(
  bus: Pick<Bus, 'publish'>,
  data: HeartbeatThreadData<unknown>,
  port: { on(event: 'message', handle: (message: Announced) => void): unknown },
): void {
  const repetition = new HeartbeatRepetition(bus, data);
  port.on('message', (message) => repetition.announced(message));
  setInterval(() => repetition.tick(), data.intervalMs);
}
