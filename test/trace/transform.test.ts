// Traces that are sliced and repeated as they stream.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { TraceRequest } from '../../src/trace/request.ts';
import { faster, parseSpan, Slice, Tiling } from '../../src/trace/transform.ts';

const request = (index: number, arrivalUs: number, ...ids: number[]): TraceRequest => ({
  index,
  arrivalUs,
  inputTokens: 512 * Math.max(1, ids.length),
  outputTokens: 1,
  blocks: Int32Array.from(ids),
});

const trace = [request(0, 5_000, 0, 1), request(1, 5_000, 0, 2), request(2, 60_000_000, 3), request(3, 90_000_000, 0)];

function cut(span: string): readonly TraceRequest[] {
  const parsed = parseSpan(span);
  if (parsed === undefined) throw new Error(`no span: ${span}`);
  const slice = new Slice(parsed);
  const kept: TraceRequest[] = [];
  for (const each of trace) {
    if (slice.over) break;
    const taken = slice.take(each);
    if (taken !== undefined) kept.push(taken);
  }
  return kept;
}

describe('a slice', () => {
  it.each([
    ['0..2', [0, 0]],
    ['1..3', [0, 59_995_000]],
    ['2..', [0, 30_000_000]],
    ['..', [0, 0, 59_995_000, 89_995_000]],
    ['60s..1.5m', [0]],
    ['1m..2m', [0, 30_000_000]],
    ['..1m', [5_000, 5_000]],
    ['0.5m..', [30_000_000, 60_000_000]],
  ])('%s keeps what lies in it, counted anew', (span, arrivals) => {
    const kept = cut(span);
    expect(kept.map(({ arrivalUs }) => arrivalUs)).toEqual(arrivals);
    expect(kept.map(({ index }) => index)).toEqual(kept.map((_, i) => i));
  });

  it.each(['', '5', '5..3', '1s..5', 's..', '1.5..2', '1d..2d', '3..3'])('refuses the span %j', (text) => {
    expect(parseSpan(text)).toBeUndefined();
  });
});

describe('tiles', () => {
  function tiles(times: number, sameBlocks: boolean): TraceRequest[] {
    const tiling = new Tiling(sameBlocks);
    const out: TraceRequest[] = [];
    for (let k = 0; k < times; k++) {
      if (k > 0) tiling.again();
      for (const each of trace) out.push(tiling.take(each));
    }
    return out;
  }

  it('start one mean gap after the previous one, each with its own blocks', () => {
    const out = tiles(3, false);
    // Three gaps of 89.995 s in total.
    const periodUs = 90_000_000 + 29_998_333;
    expect(out.map(({ arrivalUs }) => arrivalUs)).toEqual(
      [0, 1, 2].flatMap((k) => trace.map(({ arrivalUs }) => arrivalUs + k * periodUs)),
    );
    expect(out.map(({ index }) => index)).toEqual(out.map((_, i) => i));
    expect(out.slice(4, 8).map(({ blocks }) => [...blocks])).toEqual([[4, 5], [4, 6], [7], [4]]);
  });

  it('have the same blocks on request', () => {
    expect(tiles(2, true).map(({ blocks }) => blocks)).toEqual([...trace, ...trace].map(({ blocks }) => blocks));
  });

  it('end when block ids run out', () => {
    const tiling = new Tiling(false);
    tiling.take(request(0, 0, 2 ** 30));
    expect(() => tiling.again()).toThrow('no block ids are left');
  });
});

it('scaled arrivals are whole microseconds and stay in order', () => {
  fc.assert(
    fc.property(
      fc.array(fc.nat(1e9), { maxLength: 20 }),
      fc.double({ min: 0.01, max: 100, noNaN: true }),
      (times, speed) => {
        const sped = [...times].sort((a, b) => a - b).map((atUs, i) => faster(request(i, atUs), speed).arrivalUs);
        expect(sped).toEqual([...sped].sort((a, b) => a - b));
        expect(sped.every(Number.isInteger)).toBe(true);
      },
    ),
  );
});
