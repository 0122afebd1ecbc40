// Closed loops: clients that send their next request when their last one ends, alone and in a simulated cluster.
import { describe, expect, it } from 'vitest';
import { readOptions } from '../../../src/cli/options/options.ts';
import { pausesOf, runSimulation, simulationSchema } from '../../../src/cli/simulate/simulated-run.ts';
import { openWorkload } from '../../../src/cli/simulate/workload-source.ts';
import type { LengthRequest } from '../../../src/core/scheduler/executor/length-request.ts';
import { ClosedLoopFigures } from '../../../src/sim/report/closed-loop-figures.ts';
import { ClientLoop } from '../../../src/sim/workload/client-loop.ts';
import { runClosedLoop } from '../../../src/sim/workload/closed-loop.ts';
import type { TraceRequest } from '../../../src/trace/request.ts';
import type { RequestLengths } from '../../../src/util/request-lengths.ts';
import { cluster, machine, run } from '../small-cluster.ts';

describe('a loop of clients', () => {
  it('sends requests in order, one for each client at a time', () => {
    const sent: number[] = [];
    const loop = new ClientLoop<number>(2, (request) => sent.push(request));
    for (const request of [1, 2, 3, 4]) loop.add(request);
    expect(sent).toEqual([1, 2]);
    expect(loop.waiting).toBe(2);
    loop.ended();
    expect(sent).toEqual([1, 2, 3]);
    loop.ended();
    loop.ended();
    expect(loop.waiting).toBe(0);
    // One client is idle: the next request does not wait.
    loop.add(5);
    expect(sent).toEqual([1, 2, 3, 4, 5]);
  });

  it('counts whole rounds of requests while all clients are busy', () => {
    const figures = new ClosedLoopFigures(2);
    const ended = (endedUs: number, outputTokens: number, followed = true) =>
      figures.ended({ endedUs, outputTokens, ttftUs: endedUs / 10 }, followed);
    ended(1_000_000, 7);
    ended(2_000_000, 7);
    expect(figures.outputTokensPerSecond).toBe(0);
    ended(3_000_000, 10);
    // A refused request has no output.
    ended(4_000_000, 0);
    ended(5_000_000, 20);
    ended(6_000_000, 30);
    ended(8_000_000, 500);
    ended(9_000_000, 1000, false);
    expect([figures.requests, figures.seconds, figures.requestsPerSecond]).toEqual([3, 4, 0.75]);
    expect(figures.outputTokensPerSecond).toBe(15);
    // The round of the last completed request is not over.
    expect(figures.ttftUs.count).toBe(4);
  });
});

describe('a cluster with a closed loop', () => {
  const base = { workload: 'plain', input: '1000', output: '20..60', hardware: 'h100x8', model: 'llama3-70b' };
  const options = (flags: Readonly<Record<string, unknown>>) =>
    readOptions(simulationSchema, { ...base, requests: '40', mixed: '2', cacheBlocks: '200', check: true, ...flags });

  it('has as many requests in progress as clients until the workload ends, with and without faults', async () => {
    for (const faults of [undefined, ['crash:instance=0,at=1s,for=1s', 'loss:ratio=0.02']]) {
      const { outcome, checks } = await runSimulation(options({ clients: '7', faults }));
      expect([outcome.requests, outcome.completedRequests]).toEqual([40, 40]);
      expect(checks?.events).toBeGreaterThan(40);
      expect(outcome.closedLoop?.requests).toBe(3 * 7);
    }
  });

  it('is the same again, and with equal steps run one by one', async () => {
    const hash = async (flags: Readonly<Record<string, unknown>>) =>
      (await runSimulation(options({ clients: '5', ...flags }))).outcome.stateHash;
    expect(await hash({})).toBe(await hash({}));
    expect(await hash({ coalesce: false })).toBe(await hash({}));
  });

  it('has the times of the closed loop around one instance', () => {
    const lengths = (index: number) => ({ inputTokens: 10 + ((37 * index) % 90), outputTokens: 5 + (index % 11) });
    const loop = { clients: 5, requests: 60, frontendUs: () => 0, lengths };
    const ended = runClosedLoop({ ...loop, instance: { ...machine, handOff: undefined } });
    const arrivals = Array.from({ length: 60 }, (_, index) => ({
      ...{ index, arrivalUs: 0, blocks: new Int32Array(0) },
      ...lengths(index),
    }));
    const { outcome } = run(arrivals, { instances: cluster({ mixed: 1 }), clients: 5 });
    const last = ended.at(-1)?.lastTokenUs;
    expect([outcome.completedRequests, outcome.servedUntilUs]).toEqual([60, last]);
    const ttftUs = ended.map(({ trace, firstTokenUs = 0 }) => firstTokenUs - trace.arrivalUs);
    expect(outcome.ttftUs.mean).toBeCloseTo(ttftUs.reduce((sum, us) => sum + us, 0) / 60, 6);
  });

  it('takes its next request at once after a refusal, and after the last retry', async () => {
    const slo = { ttftSlo: '1ms', tbtSlo: '1ms', admission: 'early' };
    for (const retries of ['0', '1']) {
      const { outcome } = await runSimulation(options({ clients: '3', ...slo, retries }));
      expect([outcome.requests, outcome.refusedRequests]).toEqual([40, 40]);
      expect(outcome.closedLoop?.requests).toBe(0);
    }
  });

  it.each([
    [{ rate: '2' }, 'Cannot use --rate with --clients: each client sends when its last request ends'],
    [{ speed: '2' }, 'Cannot use --speed with --clients'],
    [{ clients: '3,4' }, 'Cannot use --clients 3,4 here: state one number'],
  ])('is refused with %j', async (flags, message) => {
    await expect(async () => runSimulation(options({ clients: '3', ...flags }))).rejects.toThrow(message);
  });

  /** Arrival and end of each request by index. */
  const times = async (flags: Readonly<Record<string, unknown>>) => {
    const records: { readonly index: number; readonly arrivalUs: number; readonly endUs: number }[] = [];
    const parsed = options(flags);
    const requests: TraceRequest[] = [];
    for await (const piece of openWorkload(parsed)) requests.push(...piece.requests);
    const { clients, clientPauses } = { clients: parsed.clients?.[0], clientPauses: pausesOf(parsed) };
    const inspect = {
      after: () => {},
      ended: ({ trace, lastTokenUs }: LengthRequest) =>
        records.push({ index: trace.index, arrivalUs: trace.arrivalUs, endUs: lastTokenUs }),
    };
    run(requests, { instances: cluster({ mixed: 2 }), clients, clientPauses, inspect });
    return records.sort((a, b) => a.index - b.index);
  };

  it('pauses between the requests of a client', async () => {
    const flags = { clients: '1', requests: '4', input: '40', think: '2' };
    const constant = await times({ ...flags, thinkTimes: 'constant' });
    const gaps = constant.slice(1).map(({ arrivalUs }, i) => arrivalUs - constant[i].endUs);
    expect(gaps).toEqual([2e6, 2e6, 2e6]);
    const drawn = await times(flags);
    expect(new Set(drawn.slice(1).map(({ arrivalUs }, i) => arrivalUs - drawn[i].endUs)).size).toBe(3);
  });

  it('pauses before the last requests too, which no other client takes meanwhile', async () => {
    const flags = { clients: '3', requests: '7', input: '40', output: '20..60', think: '2', thinkTimes: 'constant' };
    const records = await times(flags);
    const ends = new Set(records.map(({ endUs }) => endUs + 2e6));
    expect(records.slice(3).filter(({ arrivalUs }) => !ends.has(arrivalUs))).toEqual([]);
  });

  it.each([{ clients: '3' }, { turnTimes: 'simulated', rate: '5' }])(
    'sends each turn of a session after its answer: %j',
    async (flags) => {
      const chat = {
        workload: 'sessions',
        input: '40',
        output: '9',
        turns: '3',
        newTokens: '20',
        think: '1',
        shared: '0',
      };
      const flagsOfAll = {
        ...chat,
        thinkTimes: 'constant',
        requests: '30',
        context: '160',
        blockTokens: '16',
        ...flags,
      };
      const records = await times(flagsOfAll);
      expect(records.map(({ index }) => index)).toEqual(Array.from({ length: 30 }, (_, i) => i));
      let linked = 0;
      for await (const { requests } of openWorkload(options(flagsOfAll)))
        for (
          let request: RequestLengths | undefined = requests[0];
          request !== undefined;
          request = request.next?.request
        ) {
          const { next } = request;
          if (next === undefined) continue;
          linked++;
          expect(next.request.inputTokens).toBe(request.inputTokens + 9 + 20);
          expect(next.request.blocks.slice(0, 2)).toEqual(request.blocks.slice(0, 2));
          expect(records[next.request.index].arrivalUs - records[request.index].endUs).toBe(1e6);
        }
      expect(linked).toBeGreaterThan(5);
    },
  );

  it.each([
    { workload: 'plain', thinkTimes: 'constant' },
    { workload: 'sessions', turns: '4', newTokens: '20', shared: '0' },
  ])('has the throughput of clients over response and think time: %j', async (flags) => {
    const loop = {
      clients: '12',
      requests: '600',
      input: '200',
      output: '20',
      think: '2',
      check: false,
      blockTokens: '16',
    };
    const { outcome } = await runSimulation(options({ ...loop, ...flags }));
    const { closedLoop, e2eUs } = outcome;
    // The interactive response time law.
    const expected = 12 / (e2eUs.mean / 1e6 + 2);
    expect((closedLoop?.requestsPerSecond ?? 0) / expected).toBeGreaterThan(0.93);
    expect((closedLoop?.requestsPerSecond ?? 0) / expected).toBeLessThan(1.07);
  });

  it('reuses the history of its sessions', async () => {
    const chat = { workload: 'sessions', input: '1000~0.5', output: '250', mixed: '1', cacheBlocks: '2000' };
    const { outcome } = await runSimulation(
      options({ ...chat, blockTokens: '16', clients: '4', shared: '0', check: false }),
    );
    expect(outcome.requests).toBe(40);
    expect(outcome.cachedTokens / outcome.promptTokens).toBeGreaterThan(0.3);
  });
});
