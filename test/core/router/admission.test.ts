// Admission: SLOs, loads over their bounds, and the forecast of the decode pool.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { placedLoad } from '../../../src/core/protocol/instance-report.ts';
import type { StepShape } from '../../../src/core/protocol/step-shape.ts';
import { type Loads, overload } from '../../../src/core/router/admission/admission-policy.ts';
import { DecodeForecast } from '../../../src/core/router/admission/decode-forecast.ts';
import { DecodePool } from '../../../src/core/router/admission/decode-pool.ts';
import { ErrorBound } from '../../../src/core/router/admission/error-bound.ts';
import { OutputLengths } from '../../../src/core/router/admission/output-lengths.ts';
import { RefusalOdds } from '../../../src/core/router/admission/refusal-odds.ts';
import { parseSloBound, sloOf } from '../../../src/core/router/admission/slo.ts';
import { poolToGrow } from '../../../src/core/router/roles/role-switch.ts';

const steps = { predictUs: ({ rows, decodeKeys }: StepShape) => 1_000 * rows + decodeKeys };
const member = { steps, capacityTokens: 10_000, receiveTokens: 1_000, takesHandOffs: true };

const arrival = (at: number, tokens: number, decodeStartUs: number, tbtUsMax = Number.POSITIVE_INFINITY) => ({
  member: at,
  tokens,
  decodeStartUs,
  tbtUsMax,
});

describe('an SLO bound', () => {
  it('is a time, or a multiple of the time on an idle instance', () => {
    expect(parseSloBound('30s')).toEqual({ us: 30_000_000 });
    expect(parseSloBound('250')).toEqual({ us: 250_000 });
    expect(parseSloBound('1.5ms')).toEqual({ us: 1_500 });
    expect(parseSloBound('10x')).toEqual({ times: 10 });
    for (const text of ['', 'x', '0', '-1s', '10 y', '1e3']) expect(parseSloBound(text)).toBeUndefined();
    const alone = { promptTokens: 300, outputTokens: 3 };
    const prefill = { prefillUs: (tokens: number, cached: number) => 10 * (tokens - cached) };
    const slo = sloOf({ ttft: { times: 10 }, tbt: { us: 50_000 } }, alone, { prefill, steps });
    expect(slo).toEqual({ ttftUs: 30_000, tbtUs: 50_000, completionUs: Number.POSITIVE_INFINITY });
    const relative = sloOf({ ttft: { us: 1 }, tbt: { times: 5 } }, alone, { prefill, steps });
    expect(relative.tbtUs).toBe(5 * (1_000 + 301));
    // The prompt, then two steps with 301 and 302 tokens.
    const last = sloOf({ completion: { times: 2 } }, alone, { prefill, steps });
    expect(last.completionUs).toBe(2 * (3_000 + 2_000 + 301 + 302));
    expect([last.ttftUs, last.tbtUs]).toEqual([Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]);
  });
});

describe('admission', () => {
  const load = fc.double({ min: 0, max: 3, noNaN: true });
  it('refuses for the largest load over 1 that its policy checks, and never while all are below', () => {
    fc.assert(
      fc.property(load, load, load, load, (ttft, tbt, memory, completion) => {
        const loads: Loads = { ttft, tbt, memory, completion };
        expect(overload('none', loads)).toBeUndefined();
        expect(overload('stage', loads)).toBe(ttft > 1 ? 'ttft' : undefined);
        for (const kind of ['early', 'predictive'] as const) {
          const worst = overload(kind, loads);
          const most = Math.max(ttft, tbt, memory, completion);
          expect(worst === undefined ? 0 : loads[worst]).toBe(most > 1 ? most : 0);
        }
      }),
    );
  });

  it('learns a bound on the error of 99 of 100 predictions', () => {
    const bound = new ErrorBound();
    let late = 0;
    for (let i = 0; i < 20_000; i++) {
      // Errors from 0 to 10 ms, spread evenly by a stride that visits all values.
      const actual = 100_000 + ((i * 6_181) % 10_000);
      if (i >= 10_000 && actual > 100_000 + bound.us) late++;
      bound.observe(100_000, actual, 100_000);
    }
    expect(late / 10_000).toBeGreaterThan(0.002);
    expect(late / 10_000).toBeLessThan(0.03);
  });
});

describe('output lengths', () => {
  it('are learned by class, and give the share of longer outputs', () => {
    const outputs = new OutputLengths();
    expect([outputs.of('a').mean, outputs.of('a').longer(100)]).toEqual([1, 1]);
    for (let i = 0; i < 1000; i++) {
      outputs.observe('short', 10 + (i % 10));
      outputs.observe('long', 500 + (i % 500));
    }
    expect(outputs.of('short').mean).toBeCloseTo(14.5, 6);
    expect(outputs.of('long').mean).toBeCloseTo(749.5, 6);
    expect(outputs.of('unknown').mean).toBeCloseTo((14.5 + 749.5) / 2, 6);
    expect(outputs.of('long').longer(499)).toBeCloseTo(1, 1);
    expect(outputs.of('long').longer(749)).toBeCloseTo(0.5, 1);
    expect(outputs.of('long').longer(1100)).toBe(0);
  });

  it('give shares that never rise with length, and follow new observations', () => {
    const outputs = new OutputLengths();
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 5000 }), { minLength: 1, maxLength: 50 }), (lengths) => {
        for (const tokens of lengths) outputs.observe('a', tokens);
        const shares = Array.from({ length: 60 }, (_, i) => outputs.of('a').longer(i * i));
        expect(shares.every((share, i) => share >= 0 && share <= (shares[i - 1] ?? 1))).toBe(true);
      }),
    );
    for (let i = 0; i < 20_000; i++) outputs.observe('a', 64);
    expect(outputs.of('a').mean).toBeGreaterThan(64 - 1);
    expect(outputs.of('a').mean).toBeLessThan(64 + 20);
  });
});

describe('the odds of a refusal on the decode instance', () => {
  /** Random refusals, spread evenly by a stride, more likely the further a load is over `full`; noise 0: certain. */
  const trained = (full: number, noise: number, shift = 0) => {
    const odds = new RefusalOdds();
    for (let i = 0; i < 20_000; i++) {
      const load = 0.8 + 0.4 * (((i * 6_181) % 10_007) / 10_007);
      const drawn = ((i * 7_919) % 10_009) / 10_009 - 0.5;
      odds.observe(load - shift, load + noise * drawn > full);
    }
    return odds;
  };

  it('are even at the load at which half of the requests are refused', () => {
    expect(trained(1, 0.2).loadAt(0.5)).toBeCloseTo(1, 1);
    expect(trained(1, 0.2, 0.15).loadAt(0.5)).toBeCloseTo(0.85, 1);
    expect(trained(1, 0.1).of(1.15)).toBeGreaterThan(0.9);
    expect(trained(1, 0.1).of(0.85)).toBeLessThan(0.1);
  });

  it('reach a smaller share at a lower load, and no share at a likely load when forecasts are useless', () => {
    const odds = trained(1, 0.2);
    expect(odds.loadAt(0.2)).toBeLessThan(odds.loadAt(0.5));
    expect(trained(10, 0).loadAt(0.5)).toBeGreaterThan(1.2);
    fc.assert(
      fc.property(
        fc.double({ min: 0, max: 3, noNaN: true }),
        fc.double({ min: 0.01, max: 0.5, noNaN: true }),
        (load, more) => {
          expect(odds.of(load + more)).toBeGreaterThanOrEqual(odds.of(load));
        },
      ),
    );
  });

  it('shift the forecast load by the permitted share of refusals', () => {
    const forecast = new DecodeForecast(new DecodePool([member]), {
      kind: 'mean',
      decodeUs: 1,
      refusalProbabilityMax: 0.25,
    });
    const before = forecast.corrected(0.9);
    for (let i = 0; i < 500; i++) forecast.reachedDecode(0.9, i % 2 === 0);
    expect(forecast.corrected(0.9)).toBeGreaterThan(1);
    expect(before).toBeLessThan(1);
    // Unobserved refusals decay the fit: in the end a request is accepted again.
    for (let i = 0; i < 2_000; i++) forecast.refused();
    expect(forecast.corrected(0.9)).toBeLessThan(1);
  });
});

describe('the decode pool', () => {
  it('chooses the member with the shortest step, and those with full receive buffers last', () => {
    const pool = new DecodePool([undefined, member, member, { ...member, takesHandOffs: false }]);
    expect(pool.choose(600)).toBe(1);
    const first = pool.add(0, arrival(1, 600, 1_000));
    expect(pool.choose(600)).toBe(2);
    pool.decodeStarted(1_000, pool.add(0, arrival(2, 700, 1_000)));
    // The step is shorter on member 1, but its receive buffers hold 600 tokens.
    expect(pool.choose(500)).toBe(2);
    pool.decodeStarted(2_000, first);
    expect(pool.choose(500)).toBe(1);
    pool.instanceFailed(1);
    expect(pool.choose(900)).toBe(2);
    pool.instanceFailed(2);
    expect(pool.choose(1)).toBeUndefined();
    pool.check();
  });

  it('counts the attention that a member computes for debtors in its steps, until it fails', () => {
    const pool = new DecodePool([member, member]);
    for (const at of [0, 1]) pool.decodeStarted(0, pool.add(0, arrival(at, 500, 0)));
    pool.countNow(0);
    const alone = pool.load(0, 0).tbtUs;
    expect(pool.choose(100)).toBe(0);
    pool.setServedAttention(0, 250);
    expect(pool.choose(100)).toBe(1);
    expect(pool.load(0, 0).tbtUs).toBe(alone / 0.75);
    expect(pool.load(1, 0).tbtUs).toBe(alone);
  });

  it('counts the requests that decode now, and those that will decode at a later time', () => {
    const pool = new DecodePool([member]);
    const old = pool.add(0, arrival(0, 100, 0));
    pool.decodeStarted(0, old);
    const young = pool.add(0, arrival(0, 200, 0));
    pool.decodeStarted(50_000, young);
    pool.add(50_000, arrival(0, 400, 80_000));
    pool.add(50_000, arrival(0, 800, 300_000));
    // Two decode with 300 tokens, 350 with the new prompt, and have generated for 50 and 0 ms.
    const stepUs = 3_000 + 350;
    expect(pool.countNow(50_000).load(0, 50).tbtUs).toBeCloseTo(3_000 + 350 + 50_000 / stepUs, 6);
    // At 120 ms the first is older than 100 ms; 200 and 400 decode, the second for 70 ms.
    const thenUs = 2_000 + 600;
    const { tbtUs, memory } = pool.countAt(50_000, 120_000, 100_000).load(0, 0);
    expect(tbtUs).toBeCloseTo(2_000 + 600 + 70_000 / thenUs, 6);
    // The decode of a late request starts now: the third one at 200 ms instead of 80.
    expect(pool.countAt(200_000, 200_000, 100_000).meanTbtUs).toBe(1_400);
    expect(memory).toBeCloseTo((600 + 70_000 / thenUs) / 10_000, 6);
    pool.check();
  });

  it('counts for a request neither memory nor bounds of those that it outranks', () => {
    const pool = new DecodePool([member]);
    const one = fc.record({ tokens: fc.integer({ min: 1, max: 900 }), priority: fc.nat(3), tbtUsMax: fc.nat(100) });
    fc.assert(
      fc.property(fc.array(one, { maxLength: 20 }), fc.nat(3), (all, priority) => {
        const added = all.map(({ tokens, tbtUsMax, priority: its }) => {
          const decoding = pool.add(0, { ...arrival(0, tokens, 0, tbtUsMax), priority: its });
          pool.decodeStarted(0, decoding);
          return { ...decoding, decoding };
        });
        const above = added.filter((each) => (each.priority ?? 0) >= priority);
        const load = pool.countNow(0, priority).load(0, 50);
        const tokens = above.reduce((sum, each) => sum + each.tokens, 50);
        expect(load.memory).toBeCloseTo(tokens / 10_000, 9);
        expect(load.tbtUsMax).toBe(Math.min(Number.POSITIVE_INFINITY, ...above.map(({ tbtUsMax }) => tbtUsMax)));
        // Rows of lower priority share its steps.
        expect(load.tbtUs).toBe(pool.countNow(0).load(0, 50).tbtUs);
        for (const { decoding } of added) pool.remove(decoding);
      }),
    );
  });

  it('counts what other conductors placed, by the report of the instance', () => {
    const requests = [
      { priority: 1, tenant: undefined, promptTokens: 100, cachedTokens: 60, outputs: 0, phase: 'prefill' },
      { priority: 1, tenant: undefined, promptTokens: 50, cachedTokens: 0, outputs: 0, phase: 'prefill' },
      { priority: 1, tenant: 'a', promptTokens: 9, cachedTokens: 0, outputs: 0, phase: 'prefill' },
      { priority: 0, tenant: 'a', promptTokens: 300, cachedTokens: 0, outputs: 7, phase: 'decode' },
      { priority: 0, tenant: 'a', promptTokens: 200, cachedTokens: 0, outputs: 0, phase: 'decode' },
      { priority: 0, tenant: 'a', promptTokens: 900, cachedTokens: 0, outputs: 0, phase: 'handingOff' },
    ] as const;
    const { prefills, rows, tokens } = placedLoad(requests);
    // 40 tokens behind 60, and 50 behind none.
    expect(prefills).toEqual([
      { priority: 1, prompts: 2, tokens: 90, keyRows: 40 * 60 + 820 + 1_275 },
      { priority: 1, tenant: 'a', prompts: 1, tokens: 9, keyRows: 45 },
    ]);
    expect([rows, tokens]).toEqual([2, 507]);
    const pool = new DecodePool([member, member]);
    pool.setOthers(0, rows, tokens);
    expect(pool.choose(100)).toBe(1);
    expect(pool.countNow(0, 5).load(0, 100)).toMatchObject({ tbtUs: 3_000 + 607, memory: 607 / 10_000 });
    pool.setOthers(0, 0, 0);
    expect(pool.choose(100)).toBe(0);
  });

  it('demands roles for the load of its own conductor: two with equal loads choose as one with both', () => {
    const limits = { sustainUs: 0, dwellUs: 0, gain: 1.15, loadMin: 0, intervalUs: 1, windowUs: 1 };
    const one = { steps: { predictUs: () => 1 }, capacityTokens: 100, receiveTokens: 1_000, takesHandOffs: true };
    const demandOf = (requests: number, others: number): number => {
      const pool = new DecodePool([one]);
      for (let i = 0; i < requests; i++) pool.add(0, arrival(0, 10, 0));
      pool.setOthers(0, others, 10 * others);
      return pool.countOwn(1).demand(10);
    };
    const load = fc.double({ min: 0, max: 8, noNaN: true });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 40 }), load, (requests, prefill) => {
        const choose = (share: number, decode: number) =>
          poolToGrow({ instances: 3, demand: share * prefill }, { instances: 2, demand: decode }, limits);
        expect(choose(0.5, demandOf(requests, requests))).toBe(choose(1, demandOf(2 * requests, 0)));
      }),
    );
  });

  it('counts each request with the probability that its output continues', () => {
    const pool = new DecodePool([{ ...member, steps: { predictUs: () => 1_000 } }]);
    const forecast = new DecodeForecast(pool, { kind: 'lengths', decodeUs: 1, refusalProbabilityMax: 0.5 });
    // Half of the outputs have 10 tokens, half 100.
    for (let i = 0; i < 500; i++) for (const tokens of [10, 100]) forecast.ended('a', tokens, 0);
    const outputs = forecast.outputsOf('a');
    const old = pool.add(0, { ...arrival(0, 100, 0), outputs });
    pool.decodeStarted(0, old);
    pool.add(50_000, { ...arrival(0, 400, 60_000), outputs });
    // At 50 ms the first has 50 tokens, so that its output has 100. In 30 ms it still decodes, the second with probability 0.5.
    const { memory } = forecast.countAt(50_000, 80_000).load(0, 0);
    expect(memory).toBeCloseTo((100 + 80 + 0.5 * 400) / 10_000, 3);
    // No known output is longer than 100 tokens: a longer one counts fully.
    expect(forecast.countAt(200_000, 200_000).load(0, 0).memory).toBeGreaterThan(0.03);
    expect(forecast.countAt(50_000, 180_000).load(0, 0).memory).toBe(0);
  });

  it('uses the mean decode time for the forecast `mean`', () => {
    const pool = new DecodePool([member]);
    const forecast = new DecodeForecast(pool, { kind: 'mean', decodeUs: 7, refusalProbabilityMax: 0.5 });
    expect(forecast.decodeUs).toBe(7);
    for (const us of [100, 200, 300]) forecast.ended('a', 5, us);
    expect(forecast.decodeUs).toBe(200);
    const given = new DecodeForecast(pool, { kind: 'td', decodeUs: 7, refusalProbabilityMax: 0.5 });
    given.ended('a', 5, 100);
    expect(given.decodeUs).toBe(7);
  });

  it('has correct sums after any sequence of changes', () => {
    const move = fc.record({ tokens: fc.integer({ min: 1, max: 900 }), what: fc.nat(3), pick: fc.nat(50) });
    fc.assert(
      fc.property(fc.array(move, { maxLength: 60 }), (moves) => {
        const pool = new DecodePool([member, undefined, member]);
        const live: ReturnType<DecodePool['add']>[] = [];
        moves.forEach(({ tokens, what, pick }, i) => {
          const one = live[pick % Math.max(1, live.length)];
          if (what < 2 || one === undefined) live.push(pool.add(i, arrival(pool.choose(tokens) ?? 0, tokens, i + 5)));
          else if (what === 2) pool.decodeStarted(i, one);
          else pool.remove(one);
          pool.check();
        });
        for (const one of live) pool.remove(one);
        expect(pool.countNow(100).load(0, 0)).toEqual({ tbtUs: 0, tbtUsMax: Number.POSITIVE_INFINITY, memory: 0 });
      }),
    );
  });
});
