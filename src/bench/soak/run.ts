// `kvasir bench soak`: minutes of mixed traffic, then idle time; memory that remains in use is a leak.
import { setTimeout as sleep } from 'node:timers/promises';
import { firstModel } from '../http/client.ts';
import { type RequestOutcome, send } from './send.ts';
import { type ServerMemory, settledMemory } from './settle.ts';
import { Traffic } from './traffic.ts';

export interface SoakOptions {
  readonly url: string;
  readonly apiKey?: string | undefined;
  readonly minutes: number;
  /** Concurrent requests. */
  readonly lanes: number;
  /** Requests of a burst, once per `burstMs`; more than the queue of the server holds. */
  readonly burst: number;
  readonly seed: number;
  /** Forces a collection, trims the native heap and measures; undefined for a server that the bench did not start. */
  readonly measure: (() => Promise<ServerMemory>) | undefined;
  readonly onSample?: (sample: SoakSample) => void;
}

export interface SoakSample {
  readonly seconds: number;
  readonly requests: number;
  readonly pagesUsed: number;
  /** With running requests and the garbage of compute threads; undefined for a server that the bench did not start. */
  readonly residentBytes: number | undefined;
  /** Heaps of the threads that ran a collection; a busy instance did not. */
  readonly heapBytes: number | undefined;
}

export interface SoakReport extends Readonly<Record<RequestOutcome, number>> {
  readonly url: string;
  readonly minutes: number;
  readonly requests: number;
  /** After the first minute (the first fifth of a shorter run): idle, collected and settled. */
  readonly residentMinuteOneBytes: number | undefined;
  readonly residentEndBytes: number | undefined;
  /** End over minute one, less 1. */
  readonly growth: number | undefined;
  readonly heapMinuteOneBytes: number | undefined;
  readonly heapEndBytes: number | undefined;
  readonly pagesUsedEnd: number;
  readonly samples: readonly SoakSample[];
}

const burstMs = 20_000;
const sampleMs = 10_000;
const refusedPauseMs = 200;
const warmUpMsMax = 60_000;
/** Time between two idle measurements. */
const quietMsMax = 1000;

/** @throws Error if the server does not answer, or does not become idle */
export async function benchSoak(options: SoakOptions): Promise<SoakReport> {
  const { url, apiKey, minutes, measure } = options;
  const model = await firstModel({ url, apiKey });
  const soak = new Soak(options, new Traffic(options.seed, model, true));
  const wholeMs = minutes * 60_000;
  const firstMs = Math.min(warmUpMsMax, wholeMs / 5);
  const quietMs = Math.min(quietMsMax, wholeMs / 60);
  await soak.runTraffic(firstMs);
  await soak.waitUntilIdle();
  const before = await settledMemory(measure, quietMs);
  await soak.runTraffic(wholeMs - firstMs);
  const pagesUsedEnd = await soak.waitUntilIdle();
  const after = await settledMemory(measure, quietMs);
  const [first, last] = [before?.residentBytes, after?.residentBytes];
  return {
    url,
    minutes,
    requests: Object.values(soak.outcomes).reduce((sum, count) => sum + count, 0),
    ...soak.outcomes,
    residentMinuteOneBytes: first,
    residentEndBytes: last,
    growth: first === undefined || last === undefined ? undefined : last / first - 1,
    heapMinuteOneBytes: before?.heapBytes,
    heapEndBytes: after?.heapBytes,
    pagesUsedEnd,
    samples: soak.samples,
  };
}

class Soak {
  readonly outcomes: Record<RequestOutcome, number> = { completed: 0, cancelled: 0, refused: 0, rejected: 0, lost: 0 };
  readonly samples: SoakSample[] = [];
  readonly #options: SoakOptions;
  readonly #traffic: Traffic;
  readonly #startMs = performance.now();

  constructor(options: SoakOptions, traffic: Traffic) {
    this.#options = options;
    this.#traffic = traffic;
  }

  /** Sends traffic for a time; resolves when every request has its answer. */
  async runTraffic(ms: number): Promise<void> {
    const endMs = performance.now() + ms;
    const isRunning = (): boolean => performance.now() < endMs;
    const lane = async (): Promise<void> => {
      while (isRunning()) {
        // Like a client, a lane waits after a refusal.
        if ((await this.#send(this.#traffic.next())) === 'refused') await sleep(refusedPauseMs);
      }
    };
    const bursts = async (): Promise<void> => {
      for (; isRunning(); await this.#pause(burstMs, endMs)) {
        await Promise.all(Array.from({ length: this.#options.burst }, () => this.#send(this.#traffic.short())));
      }
    };
    const samples = async (): Promise<void> => {
      for (; isRunning(); await this.#pause(sampleMs, endMs)) await this.#sample();
    };
    await Promise.all([...Array.from({ length: this.#options.lanes }, lane), bursts(), samples()]);
  }

  /** Waits until the server is idle. @returns used pages */
  async waitUntilIdle(): Promise<number> {
    for (let checks = 0; checks < 200; checks++) {
      const [running, waiting, used] = await this.#gauges();
      if (running === 0 && waiting === 0 && used === 0) return used;
      await sleep(100);
    }
    return (await this.#gauges())[2];
  }

  async #send(request: ReturnType<Traffic['next']>): Promise<RequestOutcome> {
    const outcome = await send(this.#options.url, request, this.#options.apiKey);
    this.outcomes[outcome]++;
    return outcome;
  }

  async #pause(ms: number, endMs: number): Promise<void> {
    await sleep(Math.max(0, Math.min(ms, endMs - performance.now())));
  }

  async #sample(): Promise<void> {
    const memory = await this.#options.measure?.();
    const sample = {
      seconds: Math.round((performance.now() - this.#startMs) / 1000),
      requests: Object.values(this.outcomes).reduce((sum, count) => sum + count, 0),
      pagesUsed: (await this.#gauges())[2],
      residentBytes: memory?.residentBytes,
      heapBytes: memory?.heapBytes,
    };
    this.samples.push(sample);
    this.#options.onSample?.(sample);
  }

  /** Requests running and waiting, and pages used. */
  async #gauges(): Promise<readonly [number, number, number]> {
    const { url, apiKey } = this.#options;
    const headers = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
    const response = await fetch(new URL('/metrics', url), { headers });
    const text = await response.text();
    const value = (name: string): number => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1] ?? Number.NaN);
    return [value('kvasir_requests_running'), value('kvasir_requests_waiting'), value('kvasir_kv_pages_used')];
  }
}
