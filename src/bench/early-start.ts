// Early start: time to first token with prefill during the fetch of a prefix, against prefill after the fetch.
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { MemoryBus } from '../runtime/bus/memory-bus.ts';
import { MemoryHub } from '../runtime/bus/memory-hub.ts';
import { InstanceThread } from '../runtime/threads/instance-thread.ts';
import { greedyRequest } from './requests.ts';
import { median, round } from './statistics.ts';

export interface EarlyStartBench {
  readonly entry: URL;
  /** Settings of the instance that caches the prefixes, of one that starts early and of one that waits for whole prefixes. */
  readonly settings: readonly [unknown, unknown, unknown];
  readonly vocabSize: number;
  readonly blockTokens: number;
  /** Lengths of the fetched prefix, in whole blocks, and of the computed rest. */
  readonly prefix: number;
  readonly rest: number;
  readonly repeats: number;
  readonly log: (line: string) => void;
}

export interface EarlyStartReport {
  readonly prefix: number;
  readonly rest: number;
  /** Median times to first token of alternating runs: prefix computed, local, fetched with early start, or awaited. */
  readonly computedMs: number;
  readonly hereMs: number;
  readonly aheadMs: number;
  readonly awaitedMs: number;
  /** Early start over waiting. */
  readonly ratio: number;
  /** Hidden share of the computation behind the prefix, or of the transfer if that is shorter. */
  readonly hidden: number;
  readonly bytes: number;
}

const patienceUs = 60e6;

/** Fetches prefixes over TCP on the loopback interface, without a rate limit. */
export async function benchEarlyStart(options: EarlyStartBench): Promise<EarlyStartReport> {
  const bench = new Bench(options);
  try {
    await bench.ready();
    await bench.round(0);
    const runs: Round[] = [];
    for (let i = 1; i <= options.repeats; i++) {
      runs.push(await bench.round(i));
      options.log(`prefix ${i} of ${options.repeats}`);
    }
    const of = (ms: (run: Round) => number) => median(runs.map(ms)) ?? 0;
    const [computedMs, hereMs, aheadMs, awaitedMs] = [
      of((run) => run.computedMs),
      of((run) => run.hereMs),
      of((run) => run.aheadMs),
      of((run) => run.awaitedMs),
    ];
    const most = Math.min(hereMs, awaitedMs - hereMs);
    return {
      ...{ prefix: options.prefix, rest: options.rest },
      ...{ computedMs: round(computedMs), hereMs: round(hereMs), aheadMs: round(aheadMs), awaitedMs: round(awaitedMs) },
      ratio: round(aheadMs / awaitedMs),
      hidden: round((awaitedMs - aheadMs) / most),
      bytes: bench.bytes / (2 * (options.repeats + 1)),
    };
  } finally {
    await bench.close();
  }
}

interface Round {
  readonly computedMs: number;
  readonly hereMs: number;
  readonly aheadMs: number;
  readonly awaitedMs: number;
}

class Bench {
  readonly #options: EarlyStartBench;
  readonly #bus: MemoryBus;
  readonly #threads: readonly InstanceThread[];
  readonly #onToken = new Map<string, () => void>();
  readonly #onEnd = new Map<string, () => void>();
  #requests = 0;
  /** Measured in the last round. */
  #transferUs = 0;
  bytes = 0;

  constructor(options: EarlyStartBench) {
    this.#options = options;
    const hub = new MemoryHub();
    const bus = hub.connect();
    this.#bus = bus;
    const [token, hashKey] = [randomBytes(32).toString('hex'), new Uint32Array(randomBytes(16).buffer.slice(0, 16))];
    this.#threads = options.settings.map(
      (settings, i) =>
        new InstanceThread({
          ...{ entry: options.entry, hub, bus },
          data: {
            ...{
              settings,
              address: String(i),
              role: 'mixed',
              incarnation: 1,
              receivesPrompts: false,
              peers: 'threads',
            },
            ...{ traces: false, hashKey },
            pages: { host: '127.0.0.1', port: 0, token, transport: 'tcp' },
            loaded: undefined,
          },
          log: options.log,
          onOutputs: ({ events, snapshot }) => {
            if (i === 0 && snapshot !== undefined) this.bytes = snapshot.sent?.bytes ?? 0;
            for (const [id, { kind }] of events) {
              if (kind === 'tokens') this.#onToken.get(id)?.();
              if (kind === 'finished' || kind === 'failed') this.#onEnd.get(id)?.();
            }
          },
        }),
    );
  }

  async ready(): Promise<void> {
    await Promise.all(this.#threads.map((thread) => thread.ready));
  }

  async close(): Promise<void> {
    await Promise.all(this.#threads.map((thread) => thread.close()));
    await this.#bus.close();
  }

  async round(number: number): Promise<Round> {
    const { prefix, rest, vocabSize } = this.#options;
    const pseudoRandom = (kind: number, length: number) =>
      Array.from({ length }, (_, i) => ((i + 1) * (2 * kind + 7919) + kind) % vocabSize);
    const shared = pseudoRandom(number, prefix);
    const prompt = (kind: number) => Int32Array.from([...shared, ...pseudoRandom(1000 + 4 * number + kind, rest)]);
    const computedMs = await this.#firstTokenMs(0, prompt(0));
    const hereMs = await this.#firstTokenMs(0, prompt(1));
    const isEven = number % 2 === 0;
    const first = await this.#firstTokenMs(isEven ? 2 : 1, prompt(2), true);
    const second = await this.#firstTokenMs(isEven ? 1 : 2, prompt(3), true);
    const [aheadMs, awaitedMs] = isEven ? [second, first] : [first, second];
    this.#transferUs = Math.max(0, awaitedMs - hereMs) * 1000;
    return { computedMs, hereMs, aheadMs, awaitedMs };
  }

  /** Time to first token; resolves when the request has ended. */
  async #firstTokenMs(instance: number, prompt: Int32Array, fetches = false): Promise<number> {
    const request = greedyRequest(`early ${this.#requests++}`, prompt, 2, '');
    const blocks = this.#options.prefix / this.#options.blockTokens;
    const prefix = fetches ? { from: 0, blocks, patienceUs, transferUs: this.#transferUs } : undefined;
    const startMs = performance.now();
    let ms = 0;
    const ended = new Promise<void>((resolve) => this.#onEnd.set(request.id, resolve));
    this.#onToken.set(request.id, () => {
      ms ||= performance.now() - startMs;
    });
    this.#threads[instance]?.send({ kind: 'submit', request, prefix });
    await ended;
    // Time for the sender to release its pages.
    await sleep(20);
    return ms;
  }
}
