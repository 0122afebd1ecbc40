// `kvasir plan` against simulations of every cluster, its printed command, and its errors.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { readOptions } from '../../src/cli/options/options.ts';
import { planClusters, planFeatures } from '../../src/cli/simulate/plan-clusters.ts';
import { runSimulation, simulationSchema } from '../../src/cli/simulate/simulated-run.ts';
import { type CommandResult, kvasir as runCommand } from './command.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-plan-'));
afterAll(() => rmSync(folder, { recursive: true }));

const machines = join(folder, 'machines.yaml');
const device = `
  memoryBytes: 85899345920
  memoryBytesPerSecond: 2e12
  operationsPerSecond: { bf16: 300e12 }
  linkBytesPerSecond: 300e9
  linkUs: 5
  hostMemoryBytes: 256e9
  nicBytesPerSecond: 25e9
  nicUs: 10
`;
writeFileSync(
  machines,
  `pair:\n  devices: 2${device}  pricePerHour: 5\nsingle:\n  devices: 1${device}  pricePerHour: 3\nfree:\n  devices: 1${device}`,
);

const workload = ['--workload', 'real', '--requests', '80', '--seed', '3', '--model', 'llama3-8b'];
const slo = ['--ttft-slo', '4s', '--tbt-slo', '60ms'];

async function kvasir(...args: string[]): Promise<CommandResult> {
  const { status, stdout, stderr } = await runCommand(...args, '--machines', machines);
  // A slow machine prints progress lines.
  return { status, stdout, stderr: stderr.replace(/^(Planning|Simulating): .*\n/gm, '') };
}

/** The share within the SLO of every shape with this number of instances. */
async function sharesOf(flags: Record<string, unknown>, hardware: string, tp: number, instances: number) {
  const shapes = [
    { mixed: instances },
    ...Array.from({ length: instances - 1 }, (_, p) => {
      return { prefill: p + 1, decode: instances - p - 1 };
    }),
  ];
  const shares: number[] = [];
  for (const shape of shapes) {
    const { outcome } = await runSimulation(readOptions(simulationSchema, { ...flags, ...shape, hardware, tp }));
    shares.push(outcome.withinSlo / outcome.requests);
  }
  return shares;
}

/** The cheapest cluster with prefill and decode on different hardware, below `belowPrice`. */
async function cheapestDisaggregated(
  flags: Record<string, unknown>,
  { instancesMax, within }: { readonly instancesMax: number; readonly within: number },
  belowPrice: number,
): Promise<number> {
  const pair = [
    { hardware: 'pair', tp: 2, per: 1, price: 5 },
    { hardware: 'pair', tp: 1, per: 2, price: 5 },
  ];
  const single = [{ hardware: 'single', tp: 1, per: 1, price: 3 }];
  let cheapest = belowPrice;
  for (const [ones, others] of [
    [pair, single],
    [single, pair],
  ] as const) {
    for (const p of ones) {
      for (const d of others) {
        for (let prefill = p.per; prefill < instancesMax; prefill += p.per) {
          for (let decode = d.per; prefill + decode <= instancesMax; decode += d.per) {
            const price = (prefill / p.per) * p.price + (decode / d.per) * d.price;
            if (price >= cheapest) continue;
            const roles = {
              prefill,
              decode,
              hardware: p.hardware,
              tp: p.tp,
              decodeHardware: d.hardware,
              decodeTp: d.tp,
            };
            const { outcome } = await runSimulation(readOptions(simulationSchema, { ...flags, ...roles }));
            if (outcome.withinSlo / outcome.requests >= within) cheapest = price;
          }
        }
      }
    }
  }
  return cheapest;
}

describe('the cheapest cluster', () => {
  it.each([
    ['few requests', '1', '4s', '60ms'],
    ['many', '4', '4s', '60ms'],
    ['a TBT SLO that mixed steps miss', '3', '4s', '25ms'],
  ])('equals that of simulating every cluster: %s', async (_, rate, ttftSlo, tbtSlo) => {
    const flags = { workload: 'real', requests: 150, seed: 3, rate, model: 'llama3-8b', machines, ttftSlo, tbtSlo };
    const limits = { instancesMax: 4, within: 0.99 };
    let cheapest = Number.POSITIVE_INFINITY;
    for (const [hardware, tp, perMachine, price] of [
      ['pair', 2, 1, 5],
      ['pair', 1, 2, 5],
      ['single', 1, 1, 3],
    ] as const) {
      for (let n = 1; n * perMachine <= limits.instancesMax; n++) {
        const shares = await sharesOf(flags, hardware, tp, n * perMachine);
        if (shares.some((share) => share >= limits.within)) cheapest = Math.min(cheapest, n * price);
      }
    }
    cheapest = Math.min(cheapest, await cheapestDisaggregated(flags, limits, cheapest));
    const runs: string[] = [];
    const settings = { ...limits, flags, hardware: ['pair', 'single'] };
    expect(cheapest).toBeLessThan(Number.POSITIVE_INFINITY);
    const { winner, tried } = await planClusters(settings, (_tried, next) => runs.push(next));
    expect(winner.pricePerHour).toBe(cheapest);
    expect(winner.share).toBeGreaterThanOrEqual(limits.within);
    // Threads that have nothing else to do simulate clusters that the search may not need.
    expect(runs.length).toBeGreaterThanOrEqual(tried);
  });

  it('is printed as the command that replays it, with its frontier', async () => {
    const flags = [...workload, '--rate', '2', ...slo, '--instances-max', '4', '--no-stream'];
    const plan = JSON.parse((await kvasir('plan', '--hardware', 'single,pair', ...flags, '--json')).stdout);
    expect(plan.command).toMatch(/^kvasir simulate /);
    const replayed = JSON.parse((await kvasir(...plan.command.split(' ').slice(1), '--json')).stdout);
    expect(replayed.withinSlo / replayed.requests).toBe(plan.winner.withinSlo);
    expect(replayed).toMatchObject({ ttftMs: plan.winner.ttftMs, tbtMs: plan.winner.tbtMs });
    expect(plan.frontier).toContainEqual(plan.winner);
    const { stdout, stderr, status } = await kvasir('plan', '--hardware', 'single,pair', ...flags);
    expect([status, stderr]).toEqual([0, '']);
    expect(stdout.trim().split('\n').at(-1)).toBe(plan.command);
    expect(stdout).toContain('cheapest');
    // The TBT SLO limits mixed steps.
    expect(plan.command).toContain('--step-ms 60');
  });

  it('ignores the cluster of an experiment', async () => {
    const experiment = join(folder, 'experiment.yaml');
    writeFileSync(
      experiment,
      'workload: real\nrequests: 60\nrate: 2\nmodel: llama3-8b\nttft-slo: 4s\ntbt-slo: 60ms\nprefill: 3\ndecode: 1\n',
    );
    const flags = [
      ...['--hardware', 'single', '--instances-max', '3', '--within', '0.9'],
      ...['--faults', 'delay:ratio=0.1,by=1ms', 'duplication:ratio=0.1'],
    ];
    const plan = JSON.parse((await kvasir('plan', experiment, ...flags, '--role-switch', '--json')).stdout);
    expect(plan.command.startsWith(`kvasir simulate ${experiment} `)).toBe(true);
    expect(plan.command).toContain('--role-switch');
    const replayed = JSON.parse((await kvasir(...plan.command.split(' ').slice(1), '--json')).stdout);
    expect(replayed).toMatchObject({ requests: 60, ttftMs: plan.winner.ttftMs, tbtMs: plan.winner.tbtMs });
  });

  it('tries no other pipeline stages beside those of an experiment', async () => {
    const experiment = join(folder, 'stages.yaml');
    writeFileSync(experiment, 'workload: plain\nrequests: 20\nmodel: llama3-8b\nttft-slo: 60s\ntbt-slo: 1s\npp: 2\n');
    const flags = ['plan', experiment, '--hardware', 'pair', '--instances-max', '2', '--json'];
    const plan = JSON.parse((await kvasir(...flags)).stdout);
    expect(JSON.parse((await kvasir(...flags, '--features', 'pp')).stdout)).toEqual(plan);
  });

  it('tries each feature alone, with what it needs, while no cluster without one is cheaper', async () => {
    const disk =
      'hostLinkBytesPerSecond: 25e9\n  ssd: { bytes: 1e12, readBytesPerSecond: 7e9, writeBytesPerSecond: 4e9 }';
    const file = join(folder, 'disks.yaml');
    writeFileSync(file, `disks:\n  devices: 2${device}  ${disk}\n  pricePerHour: 5\n`);
    const flags = {
      workload: 'plain',
      requests: 4,
      model: 'llama3-8b',
      machines: file,
      ttftSlo: '0.01ms',
      tbtSlo: '0.01ms',
    };
    const limits = { instancesMax: 3, within: 1 };
    const tried: string[] = [];
    // No cluster meets this SLO, so that none is cheap enough to end the search.
    const search = planClusters({ ...limits, flags, hardware: ['disks'], features: planFeatures }, (_, next) =>
      tried.push(next),
    );
    await expect(search).rejects.toThrow('Cannot keep');
    for (const feature of planFeatures) {
      const pattern = new RegExp(`\\(tp \\d, ${feature}`);
      expect([feature, tried.some((next) => pattern.test(next))]).toEqual([feature, true]);
    }
    expect(tried.filter((next) => /^1 mixed .*(borrow|copies)/.test(next))).toEqual([]);
    expect(tried.filter((next) => next.includes('cpp')).every((next) => /^[2-9] prefill/.test(next))).toBe(true);
  });

  it('leaves out hardware that does not hold the model, and features that it lacks the memory for, and reports both', async () => {
    const flags = [
      '--workload',
      'plain',
      '--requests',
      '20',
      '--model',
      'llama2-70b',
      '--ttft-slo',
      '60s',
      '--tbt-slo',
      '1s',
    ];
    const { stdout, stderr } = await kvasir('plan', '--hardware', 'single,pair', '--features', 'tiers', ...flags);
    expect(stderr).toMatch(
      /^Left out single: Cannot hold the model: weights take 138.0 GB .* of 1 devices of 85.9 GB is 77.3 GB\nLeft out pair: no SSD for --features tiers\n$/,
    );
    expect(stdout).toMatch(/--hardware pair --tp 2 --mixed 1\n$/);
  });

  it.each([
    ['no hardware', 2, ['--hardware', 'nothing', ...slo], /^Cannot find nothing among hardware: known are/],
    ['none named', 2, slo, /^Cannot plan without hardware: use --hardware/],
    ['no SLO', 2, ['--hardware', 'single'], /^Cannot plan without an SLO: use --ttft-slo and --tbt-slo/],
    ['no price', 2, ['--hardware', 'free', ...slo], /^Cannot plan with free: its entry has no pricePerHour/],
    [
      'a model that is too large',
      2,
      ['--hardware', 'single,rtx4090', '--model', 'llama2-70b', ...slo],
      /^Cannot plan llama2-70b on single, rtx4090: single: Cannot hold the model: weights take/,
    ],
    [
      'a fraction of several machines',
      2,
      ['--hardware', 'pair', '--pp', '3', ...slo],
      /^Cannot plan llama3-8b on pair: pair: Cannot use --tp 1 with --pp 3: an instance beyond one machine must fill whole machines: pair has 2 devices/,
    ],
    [
      'an SLO that nothing meets',
      1,
      ['--hardware', 'single', '--instances-max', '2', '--ttft-slo', '1ms', '--tbt-slo', '1ms'],
      /^Cannot keep 99 % of the requests within SLO with 2 instances at most: .* of single \(tp 1\) has the highest share, 0 %/,
    ],
  ])('is refused in one line: %s', async (_, code, args, message) => {
    const { status, stdout, stderr } = await kvasir('plan', ...workload, ...args);
    expect([status, stdout]).toEqual([code, '']);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toMatch(message);
  });
});

describe('the choice of (a, b)', () => {
  const shape = [
    '--workload',
    'plain',
    '--input',
    '1155',
    '--output',
    '211',
    '--requests',
    '50',
    '--sequences',
    '4096',
  ];
  const dop = [
    'plan',
    '--dop',
    '--model',
    'llama3-70b',
    '--hardware',
    'h100x8',
    '--attention-hardware',
    'h20x8',
    ...shape,
  ];

  it('lists divisions by price, with the bandwidth that they need, beside instances that are not divided', async () => {
    const plot = join(folder, 'choices.svg');
    const plan = JSON.parse((await kvasir(...dop, '--json', '--plot', plot)).stdout);
    const divisions = new Set(plan.dop.map((row: { dop: string }) => row.dop));
    // A mark for each division, and for each instance that is not divided.
    expect(readFileSync(plot, 'utf8').match(/<circle/g)).toHaveLength(divisions.size + plan.coupled.length);
    expect([plan.contextTokens, plan.sequencesMax]).toEqual([Math.round(1155 + 211 / 2), 4096]);
    const values = plan.dop.map(({ tokensPerPrice }: { tokensPerPrice: number }) => tokensPerPrice);
    expect(values).toEqual(values.toSorted((a: number, b: number) => b - a));
    const [best] = plan.dop;
    expect(best.tokensPerSecond).toBeCloseTo((best.sequences * 1000) / best.tbtMs, 3);
    expect(best.gigabytesPerSecondMin).toBeGreaterThan(10);
    expect(plan.coupled.map(({ tp }: { tp: number }) => tp).toSorted()).toEqual([2, 4, 8]);
    // The figures of one division are those of its simulation.
    const { stdout } = await kvasir(
      ...['simulate', '--model', 'llama3-70b', '--hardware', 'h100x8', '--attention-hardware', 'h20x8', ...shape],
      ...['--dop', best.dop, '--staggered-batches', String(best.staggeredBatches), '--mixed', '1', '--decode-only'],
      ...['--rate', '100000', '--json'],
    );
    const { completed, tbtMs, prefillTokens } = JSON.parse(stdout);
    expect([completed, prefillTokens]).toEqual([50, 0]);
    expect(tbtMs.mean).toBeLessThan(best.tbtMs);
  });

  it.each([
    [
      'features of clusters',
      ['--features', 'borrow'],
      /^Cannot use --features with --dop: it divides devices and tries no clusters/,
    ],
    ['a multiple as TBT', ['--tbt-slo', '5x'], /^Cannot use --tbt-slo 5x with --dop: write a time, for example 100ms/],
    [
      'a TBT that no division keeps',
      ['--tbt-slo', '1ms'],
      /^Cannot divide llama3-70b on h100x8 and h20x8: no \(a, b\)/,
    ],
  ])('is refused in one line: %s', async (_, flags, message) => {
    const { status, stderr } = await kvasir(...dop, ...flags);
    expect(status).not.toBe(0);
    expect(stderr).toMatch(message);
  });
});
