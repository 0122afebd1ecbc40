// Generated workloads: deterministic, as described, and with Mooncake's published figures.
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { mooncakeLine } from '../../src/trace/mooncake.ts';
import { TraceParser } from '../../src/trace/parser.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { TraceSummary } from '../../src/trace/statistics.ts';
import { type Workload, WorkloadGenerator } from '../../src/trace/workload/generator.ts';
import { parseLengthFile } from '../../src/trace/workload/length-file.ts';
import { parseLengths } from '../../src/trace/workload/lengths.ts';
import { presetNames, presets } from '../../src/trace/workload/presets.ts';
import { Prng } from '../../src/util/prng.ts';

const blockTokens = 512;

function make(workload: Workload, count: number, seed = 0): TraceRequest[] {
  const generator = new WorkloadGenerator(workload, { seed, blockTokens });
  return Array.from({ length: count }, () => generator.next());
}

function statisticsOf(requests: readonly TraceRequest[]) {
  const summary = new TraceSummary(blockTokens);
  for (const request of requests) summary.add(request);
  return summary.statistics([]);
}

describe('a generated workload', () => {
  it.each(presetNames)(
    '%s is a trace: in order, of as many blocks as its prompts need, the same once written',
    (name) => {
      const requests = make(presets[name], 300, 7);
      const parser = new TraceParser({ blockTokens });
      const read: TraceRequest[] = [];
      parser.push(requests.map((request) => `${mooncakeLine(request)}\n`).join(''), read);
      parser.end(read);
      expect(read).toEqual(requests);
      for (const { inputTokens, outputTokens, blocks } of requests) {
        expect(inputTokens + outputTokens).toBeLessThanOrEqual(presets[name].contextTokens);
        expect(new Set(blocks).size).toBe(blocks.length);
      }
    },
  );

  it.each(presetNames)('%s shares prefixes only: equal ids follow equal ids', (name) => {
    const before = new Map<number, number | undefined>();
    for (const { blocks } of make(presets[name], 500)) {
      for (const [i, id] of blocks.entries()) {
        const parent = i === 0 ? undefined : blocks[i - 1];
        if (before.has(id)) expect(before.get(id)).toBe(parent);
        else before.set(id, parent);
      }
    }
  });

  it('has the same bits on any machine', () => {
    // Times, lengths and blocks.
    const lineOf = ({ session: _, turn: __, ...request }: TraceRequest) => mooncakeLine(request);
    const hash = createHash('sha256');
    for (const name of presetNames.filter((preset) => preset !== 'sessions'))
      for (const request of make(presets[name], 400, 3)) hash.update(lineOf(request));
    const bursts = {
      ...presets.plain,
      arrivals: { kind: 'bursts', requestsPerSecond: 3, onSeconds: 2, offSeconds: 9 },
    };
    for (const request of make(bursts as Workload, 400, 3)) hash.update(lineOf(request));
    expect(hash.digest('hex').slice(0, 16)).toBe('f53188c424f8b44b');
    const sessions = createHash('sha256');
    for (const request of make(presets.sessions, 400, 3)) sessions.update(lineOf(request));
    expect(sessions.digest('hex').slice(0, 16)).toBe('e33df5f2ffa896aa');
  });

  it('differs from another seed in every purpose', () => {
    const [a, b] = [make(presets['l-eval'], 50, 1), make(presets['l-eval'], 50, 2)];
    for (const field of ['arrivalUs', 'inputTokens', 'outputTokens', 'blocks'] as const) {
      expect(a.map((request) => request[field])).not.toEqual(b.map((request) => request[field]));
    }
  });

  // Published: Mooncake, FAST'25. Tolerances are some standard errors of 4,000 draws.
  it.each([
    ['arxiv', 8088, 229, 0, 0],
    ['l-eval', 19_019, 72, 0.8, 0.88],
    ['simulated-16k', 16_384, 512, 0.48, 0.5],
    ['simulated-32k', 32_768, 512, 0.48, 0.5],
    ['simulated-64k', 65_536, 512, 0.48, 0.5],
    ['simulated-128k', 131_072, 512, 0.48, 0.5],
    ['real', 7955, 194, 0.45, 0.52],
  ] as const)('%s has the published lengths and share of cached prompts', (name, input, output, least, most) => {
    const { inputTokens, outputTokens, ideal, arrivals } = statisticsOf(make(presets[name], 4000));
    expect(Math.abs(inputTokens.mean / input - 1)).toBeLessThan(0.05);
    expect(Math.abs(outputTokens.mean / output - 1)).toBeLessThan(0.05);
    expect(ideal.hitRatioTokens).toBeGreaterThanOrEqual(least);
    expect(ideal.hitRatioTokens).toBeLessThanOrEqual(most);
    expect(Math.abs(arrivals.requestsPerSecond - 1)).toBeLessThan(0.06);
  });

  it.each([
    [0.01, 40],
    [0.1, 400],
    [0.3, 1200],
  ] as const)('of a long mix has a share %f of long prompts', (share, expected) => {
    const long = make(presets[`long-${share * 100}` as 'long-1'], 4000).filter(
      ({ inputTokens }) => inputTokens >= 50_000,
    );
    expect(Math.abs(long.length - expected)).toBeLessThan(4 * Math.sqrt(expected));
  });
});

describe('arrivals', () => {
  const gaps = (arrivals: Workload['arrivals'], count: number) => {
    const times = make({ ...presets.plain, arrivals }, count).map(({ arrivalUs }) => arrivalUs);
    return times.slice(1).map((atUs, i) => atUs - times[i]);
  };
  const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const variation = (values: readonly number[]) => {
    const middle = mean(values);
    return Math.sqrt(mean(values.map((value) => (value - middle) ** 2))) / middle;
  };

  it('at a constant rate do not drift', () => {
    expect(make({ ...presets.plain, arrivals: { kind: 'constant', requestsPerSecond: 3 } }, 3001)[3000].arrivalUs).toBe(
      1e9,
    );
  });

  it('of a Poisson process have gaps with mean equal to deviation', () => {
    const poisson = gaps({ kind: 'poisson', requestsPerSecond: 20 }, 20_000);
    expect(mean(poisson)).toBeCloseTo(50_000, -3);
    expect(variation(poisson)).toBeCloseTo(1, 1);
  });

  it('in bursts keep the mean rate and leave pauses', () => {
    const bursts = gaps({ kind: 'bursts', requestsPerSecond: 20, onSeconds: 1, offSeconds: 4 }, 100_000);
    expect(Math.abs(mean(bursts) / 50_000 - 1)).toBeLessThan(0.06);
    expect(variation(bursts)).toBeGreaterThan(5);
  });
});

describe('sessions', () => {
  const sessions = {
    turns: 4,
    newTokens: { kind: 'fixed', tokens: 100 },
    thinkSeconds: 1,
    answerMsPerToken: 10,
  } as const;
  const requests = make({ ...presets.plain, sessions }, 2000);

  it('continue from prompt and output, after the answer and a pause', () => {
    // The first block identifies a session.
    const last = new Map<number, TraceRequest>();
    let turns = 0;
    for (const request of requests) {
      const before = last.get(request.blocks[0]);
      last.set(request.blocks[0], request);
      if (before === undefined) continue;
      turns++;
      expect(request.inputTokens).toBe(before.inputTokens + before.outputTokens + 100);
      expect(request.arrivalUs).toBeGreaterThanOrEqual(before.arrivalUs + before.outputTokens * 10_000);
      const full = Math.floor(before.inputTokens / blockTokens);
      expect(request.blocks.subarray(0, full)).toEqual(before.blocks.subarray(0, full));
      expect(request.blocks[full]).not.toBe(before.blocks[full]);
    }
    // Three of four requests continue a session.
    expect(turns / requests.length).toBeCloseTo(0.75, 1);
  });
});

describe('lengths', () => {
  it('have the described distribution', () => {
    const draws = (text: string) => {
      const input = parseLengths(text);
      if (input === undefined) throw new Error(`no lengths: ${text}`);
      const lengths = { kind: 'drawn', input, output: input } as const;
      return make({ ...presets.plain, lengths, contextTokens: 2 ** 30 }, 20_000).map(({ inputTokens }) => inputTokens);
    };
    expect(new Set(draws('77'))).toEqual(new Set([77]));
    expect([...new Set(draws('5..8'))].sort()).toEqual([5, 6, 7, 8]);
    const values = draws('10000~0.5');
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
    expect(Math.abs(mean / 10_000 - 1)).toBeLessThan(0.02);
    expect(Math.abs(deviation / 5000 - 1)).toBeLessThan(0.04);
  });

  it.each(['', '0', '9..3', '-5', '5~', '1.5', 'x', '3000000000'])('are invalid: %j', (text) => {
    expect(parseLengths(text)).toBeUndefined();
  });

  it('are read from a file in pairs', () => {
    const table = parseLengthFile('num_prefill_tokens,num_decode_tokens,pd_ratio\r\n100,1,100\n200,2,100\n');
    const pairs = make({ ...presets.plain, lengths: table }, 200).map(({ inputTokens, outputTokens }) => [
      inputTokens,
      outputTokens,
    ]);
    expect(new Set(pairs.map(String))).toEqual(new Set(['100,1', '200,2']));
  });

  it.each([
    ['a,b\n1,2', 'line 1: no column num_prefill_tokens'],
    ['num_prefill_tokens,num_decode_tokens\n5,x', 'line 2: num_decode_tokens is "x"'],
    ['num_prefill_tokens,num_decode_tokens\n', 'holds no lengths'],
  ])('are refused by line and column: %j', (text, message) => {
    expect(() => parseLengthFile(text)).toThrow(message);
  });
});

describe('random numbers', () => {
  it('have integers of a range, and normal values of deviation 1', () => {
    fc.assert(
      fc.property(fc.nat(), fc.integer({ min: -50, max: 50 }), fc.nat(9), (seed, min, width) => {
        const chance = new Prng(seed, 9);
        const drawn = Array.from({ length: 50 }, () => chance.integer(min, min + width));
        expect(drawn.every((value) => Number.isInteger(value) && value >= min && value <= min + width)).toBe(true);
      }),
      { numRuns: 50 },
    );
    const chance = new Prng(1, 1);
    const normal = Array.from({ length: 40_000 }, () => chance.normal());
    expect(normal.reduce((sum, value) => sum + value, 0) / normal.length).toBeCloseTo(0, 1);
    expect(normal.reduce((sum, value) => sum + value * value, 0) / normal.length).toBeCloseTo(1, 1);
    expect(normal.filter((value) => Math.abs(value) < 1).length / normal.length).toBeCloseTo(0.683, 1);
  });
});
