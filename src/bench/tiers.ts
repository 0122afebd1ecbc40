// Cache tiers: time to first token with the prefix in the KV pool, in host memory, on SSD, or not cached; and what storing
// it costs.
import { setTimeout as sleep } from 'node:timers/promises';
import type { InferencePort } from '../core/protocol/ports.ts';
import { greedyRequest } from './requests.ts';
import { median, round } from './statistics.ts';

export interface TiersBench {
  /** One instance: its pool holds one prompt, its host memory two but not four, its SSD all. */
  readonly port: InferencePort;
  /** The same without tiers. */
  readonly plain: InferencePort;
  readonly vocabSize: number;
  /** Length of the prompts. */
  readonly prompt: number;
  readonly blockTokens: number;
  readonly blockBytes: number;
  readonly repeats: number;
  readonly onProgress: (line: string) => void;
}

const sources = ['not cached', 'pool', 'host memory', 'SSD', 'not cached, without tiers'] as const;

export interface TiersRow {
  readonly prompt: number;
  /** The tier that holds the prompt. */
  readonly from: (typeof sources)[number];
  /** Medians of alternating runs. */
  readonly ttftMs: number;
  /** Ratio to the time of an uncached prompt. */
  readonly ratio: number;
  /** Cached tokens of a prompt. */
  readonly cachedTokens: number;
  /** Blocks of a prompt from host memory and from SSD. */
  readonly hostBlocks: number;
  readonly ssdBlocks: number;
}

interface Timed {
  readonly ms: number;
  readonly cachedTokens: number;
  readonly hostBlocks: number;
  readonly ssdBlocks: number;
}

/** Prompts in between evict the timed one from the pool, then from host memory. */
export async function benchTiers(options: TiersBench): Promise<readonly TiersRow[]> {
  const bench = new Bench(options);
  await bench.fill(2);
  for (let i = 0; i < 2; i++) await bench.timeWithoutTiers();
  const timed = sources.map((): Timed[] => []);
  for (let i = 0; i < options.repeats; i++) {
    const prompt = bench.newPrompt();
    timed[0]?.push(await bench.time(prompt));
    await bench.written(1);
    timed[1]?.push(await bench.time(prompt));
    await bench.fill(1);
    timed[2]?.push(await bench.time(prompt));
    await bench.fill(3);
    timed[3]?.push(await bench.time(prompt));
    timed[4]?.push(await bench.timeWithoutTiers());
    options.onProgress(`prompt ${i + 1} of ${options.repeats}`);
  }
  const [uncached] = timed.map((runs) => median(runs.map(({ ms }) => ms)) ?? 0);
  return sources.map((from, i) => {
    const runs = timed[i] ?? [];
    const ms = median(runs.map(({ ms }) => ms)) ?? 0;
    const mean = (of: (run: Timed) => number) => round(runs.reduce((sum, run) => sum + of(run), 0) / runs.length);
    return {
      prompt: options.prompt,
      from,
      ttftMs: round(ms),
      ratio: round(ms / Math.max(1e-9, uncached ?? 0)),
      cachedTokens: mean((run) => run.cachedTokens),
      hostBlocks: mean((run) => run.hostBlocks),
      ssdBlocks: mean((run) => run.ssdBlocks),
    };
  });
}

class Bench {
  readonly #options: TiersBench;
  #prompts = 0;
  #requests = 0;
  #computed = 0;

  constructor(options: TiersBench) {
    this.#options = options;
  }

  /** Pseudo-random tokens, different each time. */
  newPrompt(): Int32Array {
    const { prompt, vocabSize } = this.#options;
    const kind = this.#prompts++;
    return Int32Array.from({ length: prompt }, (_, i) => ((i + 1) * (2 * kind + 7919) + kind) % vocabSize);
  }

  /** Waits until this number of prompts is computed and written. */
  async fill(prompts: number): Promise<void> {
    for (let i = 0; i < prompts; i++) {
      await this.time(this.newPrompt());
      await this.written(1);
    }
  }

  /** Waits until this number of further prompts is on SSD. */
  async written(prompts: number): Promise<void> {
    const { port, prompt, blockTokens, blockBytes } = this.#options;
    this.#computed += prompts;
    const bytes = this.#computed * Math.floor(prompt / blockTokens) * blockBytes;
    while ((port.snapshot().tiers?.moved?.ssdWrittenBytes ?? 0) < bytes) await sleep(1);
  }

  async time(prompt: Int32Array): Promise<Timed> {
    const before = this.#options.port.snapshot().tiers?.reads;
    const { ms, cachedTokens } = await this.#firstToken(prompt);
    const after = this.#options.port.snapshot().tiers?.reads;
    const read = (from: 'host' | 'ssd') => (after?.[from] ?? 0) - (before?.[from] ?? 0);
    return { ms, cachedTokens, hostBlocks: read('host'), ssdBlocks: read('ssd') };
  }

  async timeWithoutTiers(): Promise<Timed> {
    const { ms, cachedTokens } = await this.#firstToken(this.newPrompt(), this.#options.plain);
    return { ms, cachedTokens, hostBlocks: 0, ssdBlocks: 0 };
  }

  /** Time to first token; resolves when the request has ended. */
  #firstToken(
    prompt: Int32Array,
    port = this.#options.port,
  ): Promise<{ readonly ms: number; readonly cachedTokens: number }> {
    return new Promise((resolve, reject) => {
      const startMs = performance.now();
      let ms = 0;
      let cachedTokens = 0;
      const request = greedyRequest(`tiers ${this.#requests++}`, prompt, 1, '');
      port.submit(request, (event) => {
        if (event.kind === 'started') cachedTokens = event.cachedTokens;
        if (event.kind === 'tokens' && ms === 0) ms = performance.now() - startMs;
        if (event.kind === 'finished') resolve({ ms, cachedTokens });
        if (event.kind === 'failed') reject(new Error(event.message));
      });
    });
  }
}
