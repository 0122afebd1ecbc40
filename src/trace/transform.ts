// Scales, cuts and repeats traces as they stream.
import type { TraceRequest } from './request.ts';

/** The half-open range [from, to), in requests or in microseconds of the trace. */
export interface Span {
  readonly unit: 'requests' | 'us';
  readonly from: number;
  /** Infinity: to the end. */
  readonly to: number;
}

const unitUs: Readonly<Record<string, number>> = { s: 1e6, m: 60e6, h: 3600e6 };
const spanPattern = /^(?:(\d+(?:\.\d+)?)([smh])?)?\.\.(?:(\d+(?:\.\d+)?)([smh])?)?$/;

/** '100..500' in requests or '60s..5m' in time; either end may be omitted. Undefined: invalid. */
export function parseSpan(text: string): Span | undefined {
  const match = spanPattern.exec(text.trim());
  if (match === null) return undefined;
  const [, first, firstUnit, last, lastUnit] = match;
  const timed = (firstUnit ?? lastUnit) !== undefined;
  const end = (value: string | undefined, unit: string | undefined, missing: number) => {
    if (value === undefined) return missing;
    if ((unit !== undefined) !== timed) return Number.NaN;
    return timed ? Math.round(Number(value) * unitUs[unit ?? 's']) : Number(value);
  };
  const from = end(first, firstUnit, 0);
  const to = end(last, lastUnit, Number.POSITIVE_INFINITY);
  const whole = timed || (Number.isInteger(from) && (Number.isInteger(to) || to === Number.POSITIVE_INFINITY));
  return whole && from < to ? { unit: timed ? 'us' : 'requests', from, to } : undefined;
}

/** The requests of the span, renumbered from 0, with times from the start of the span or from its first request. */
export class Slice {
  readonly #span: Span;
  #startUs: number | undefined;
  #seen = 0;
  #kept = 0;
  #over = false;

  constructor(span: Span) {
    this.#span = span;
    if (span.unit === 'us') this.#startUs = span.from;
  }

  /** True if all further requests are behind the span. */
  get over(): boolean {
    return this.#over;
  }

  /** Undefined: the request is not in the span. */
  take(request: TraceRequest): TraceRequest | undefined {
    const { unit, from, to } = this.#span;
    const at = unit === 'us' ? request.arrivalUs : this.#seen;
    this.#seen++;
    this.#over = at >= to || (unit === 'requests' && this.#seen >= to);
    if (at < from || at >= to) return undefined;
    this.#startUs ??= request.arrivalUs;
    return { ...request, index: this.#kept++, arrivalUs: request.arrivalUs - this.#startUs };
  }
}

/**
 * Repeats a trace. Each repetition starts one mean gap after the last arrival of the one before. Each has new blocks,
 * unless `sameBlocks` is set.
 */
export class Tiling {
  readonly #sameBlocks: boolean;
  #tile = 0;
  #count = 0;
  #firstUs = 0;
  #lastUs = 0;
  /** Numbers of block ids and of sessions of one repetition. */
  #ids = 0;
  #sessions = 0;
  #emitted = 0;

  constructor(sameBlocks: boolean) {
    this.#sameBlocks = sameBlocks;
  }

  take(request: TraceRequest): TraceRequest {
    if (this.#tile === 0) this.#measure(request);
    const index = this.#emitted++;
    const arrivalUs = request.arrivalUs + this.#tile * this.#periodUs;
    const { session } = request;
    const own = session === undefined ? {} : { session: session + this.#tile * this.#sessions };
    return { ...request, index, arrivalUs, blocks: this.#blocksOf(request.blocks), ...own };
  }

  /** The trace has ended and repeats. */
  again(): void {
    this.#tile++;
    if (!this.#sameBlocks && (this.#tile + 1) * this.#ids > 2 ** 31) {
      throw new Error(`Cannot tile: no block ids are left: ${this.#tile} times ${this.#ids} of ${2 ** 31}`);
    }
  }

  get #periodUs(): number {
    const gapUs = this.#count > 1 ? Math.round((this.#lastUs - this.#firstUs) / (this.#count - 1)) : 1_000_000;
    return this.#lastUs + gapUs;
  }

  #measure({ arrivalUs, blocks, session = -1 }: TraceRequest): void {
    if (this.#count++ === 0) this.#firstUs = arrivalUs;
    this.#lastUs = arrivalUs;
    this.#sessions = Math.max(this.#sessions, session + 1);
    for (const id of blocks) if (id >= this.#ids) this.#ids = id + 1;
  }

  #blocksOf(blocks: Int32Array): Int32Array {
    if (this.#sameBlocks || this.#tile === 0) return blocks;
    const shift = this.#tile * this.#ids;
    return blocks.map((id) => id + shift);
  }
}

/** Divides arrival times by `speed`. */
export function faster(request: TraceRequest, speed: number): TraceRequest {
  return speed === 1 ? request : { ...request, arrivalUs: Math.round(request.arrivalUs / speed) };
}
