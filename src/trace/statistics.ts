// Statistics of a trace: lengths, arrivals, and shared prompt blocks.
import { Int32List } from '../util/int32-list.ts';
import type { TraceRequest } from './request.ts';
import { BlockTouches, type CacheBound, type HitRatios } from './reuse.ts';

/** Percentiles interpolate linearly between the two values around rank p (n - 1). */
export interface Distribution {
  readonly mean: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
  readonly max: number;
}

/** Hit ratios of a cache; `eviction` is the name of its order or policy. */
export interface BoundedRatios extends Omit<CacheBound, 'eviction'>, HitRatios {
  readonly eviction: string;
}

export interface TraceStatistics {
  readonly requests: number;
  readonly blockTokens: number;
  readonly durationSeconds: number;
  readonly inputTokens: Distribution & { readonly total: number };
  readonly outputTokens: Distribution & { readonly total: number };
  readonly arrivals: {
    readonly requestsPerSecond: number;
    /** Maximum number of arrivals in one clock second, and in one clock minute. */
    readonly busiestSecond: number;
    readonly busiestMinute: number;
    readonly gapMs: Distribution;
  };
  readonly blocks: {
    readonly total: number;
    readonly unique: number;
    readonly usedOnce: number;
    /** Blocks that no earlier prompt had, and those of prompts without hashes among them. */
    readonly neverSeen: number;
    readonly withoutHashes: number;
  };
  /** Of one unbounded cache. */
  readonly ideal: HitRatios;
  readonly capacities: readonly BoundedRatios[];
}

/** Accepts requests one by one. Memory: 28 bytes per request and 8 per block. */
export class TraceSummary {
  readonly #blockTokens: number;
  readonly #input = new Int32List(256);
  readonly #output = new Int32List(256);
  readonly #gapUs: number[] = [];
  readonly #touches: BlockTouches;
  readonly #perSecond = new BusiestWindow(1_000_000);
  readonly #perMinute = new BusiestWindow(60_000_000);
  #firstUs: number | undefined;
  #lastUs = 0;

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
    this.#touches = new BlockTouches(blockTokens);
  }

  add(request: TraceRequest): void {
    if (this.#firstUs === undefined) this.#firstUs = request.arrivalUs;
    else this.#gapUs.push(request.arrivalUs - this.#lastUs);
    this.#lastUs = request.arrivalUs;
    this.#perSecond.add(request.arrivalUs);
    this.#perMinute.add(request.arrivalUs);
    this.#input.push(request.inputTokens);
    this.#output.push(request.outputTokens);
    this.#touches.add(request);
  }

  /** @param policyName of bounds that evict by a policy */
  statistics(bounds: readonly CacheBound[], policyName = 'policy'): TraceStatistics {
    const requests = this.#input.length;
    const durationSeconds = (this.#lastUs - (this.#firstUs ?? 0)) / 1e6;
    const { total, unique, withoutHashes } = this.#touches;
    return {
      requests,
      blockTokens: this.#blockTokens,
      durationSeconds,
      inputTokens: withTotal(this.#input.view()),
      outputTokens: withTotal(this.#output.view()),
      arrivals: {
        requestsPerSecond: durationSeconds === 0 ? 0 : requests / durationSeconds,
        busiestSecond: this.#perSecond.most,
        busiestMinute: this.#perMinute.most,
        gapMs: distribution(this.#gapUs, 1000),
      },
      blocks: { total, unique, usedOnce: this.#touches.usedOnce(), neverSeen: unique + withoutHashes, withoutHashes },
      ideal: this.#touches.ideal(),
      capacities: bounds.map((bound) => {
        const eviction = typeof bound.eviction === 'string' ? bound.eviction : policyName;
        return { ...bound, eviction, ...this.#touches.bounded(bound) };
      }),
    };
  }
}

/** Counts arrivals in consecutive clock windows. Arrivals must be in order. */
class BusiestWindow {
  readonly #windowUs: number;
  #window = 0;
  #count = 0;
  most = 0;

  constructor(windowUs: number) {
    this.#windowUs = windowUs;
  }

  add(atUs: number): void {
    const window = Math.floor(atUs / this.#windowUs);
    if (window !== this.#window) this.#count = 0;
    this.#window = window;
    this.most = Math.max(this.most, ++this.#count);
  }
}

function withTotal(values: Int32Array): Distribution & { readonly total: number } {
  return { ...distribution(values), total: values.reduce((sum, value) => sum + value, 0) };
}

function distribution(values: ArrayLike<number>, unit = 1): Distribution {
  const sorted = Float64Array.from(values).sort();
  const n = sorted.length;
  const at = (p: number) => {
    if (n === 0) return 0;
    const rank = p * (n - 1);
    const below = sorted[Math.floor(rank)];
    return (below + (sorted[Math.ceil(rank)] - below) * (rank % 1)) / unit;
  };
  const mean = n === 0 ? 0 : sorted.reduce((sum, value) => sum + value, 0) / n / unit;
  return { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99), max: n === 0 ? 0 : sorted[n - 1] / unit };
}
