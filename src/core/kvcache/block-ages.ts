// How long blocks stay in the prefix cache, and how long they wait for their next use: histograms for metrics.
import { wideZero } from '../../util/wide-zero.ts';
import { type BlockAges, blockAgeBoundsS, type HistogramSnapshot } from '../protocol/ports.ts';

/** Arrays are indexed by the ids of the eviction queue. */
export class BlockAgeCounter {
  /** The time of all events until the next change. */
  nowUs: number = wideZero;
  readonly #storedUs: Float64Array;
  readonly #usedUs: Float64Array;
  readonly #lifetime = new AgeHistogram();
  readonly #reuseGap = new AgeHistogram();

  constructor(blocks: number) {
    this.#storedUs = new Float64Array(blocks);
    this.#usedUs = new Float64Array(blocks);
  }

  /** The block enters the index. */
  stored(block: number): void {
    this.#storedUs[block] = this.nowUs;
    this.#usedUs[block] = this.nowUs;
  }

  /** A request takes the block as part of its prefix. */
  reused(block: number): void {
    this.#reuseGap.observe(this.nowUs - this.#usedUs[block]);
    this.#usedUs[block] = this.nowUs;
  }

  /** The block is evicted. */
  evicted(block: number): void {
    this.#lifetime.observe(this.nowUs - this.#storedUs[block]);
  }

  /** Seconds since the last use of a block. */
  unusedS(block: number): number {
    return (this.nowUs - this.#usedUs[block]) / 1e6;
  }

  get snapshot(): BlockAges {
    return { lifetime: this.#lifetime.snapshot, reuseGap: this.#reuseGap.snapshot };
  }
}

class AgeHistogram {
  readonly #counts = new Float64Array(blockAgeBoundsS.length + 1);
  #sumUs: number = wideZero;

  observe(us: number): void {
    const seconds = us / 1e6;
    let bucket = 0;
    while (bucket < blockAgeBoundsS.length && seconds > blockAgeBoundsS[bucket]) bucket++;
    this.#counts[bucket] = this.#counts[bucket] + 1;
    this.#sumUs += us;
  }

  get snapshot(): HistogramSnapshot {
    return { counts: [...this.#counts], sum: this.#sumUs / 1e6 };
  }
}

/** The observations of both. */
export function sumOfAges(a: BlockAges, b: BlockAges): BlockAges {
  return { lifetime: sumOfHistograms(a.lifetime, b.lifetime), reuseGap: sumOfHistograms(a.reuseGap, b.reuseGap) };
}

function sumOfHistograms(a: HistogramSnapshot, b: HistogramSnapshot): HistogramSnapshot {
  return { counts: a.counts.map((count, i) => count + (b.counts[i] ?? 0)), sum: a.sum + b.sum };
}
