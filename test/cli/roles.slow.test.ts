// Instances of one role with hardware of their own, and instances over several machines.
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { clusterFields, instanceSpecs, pricePerHourOf } from '../../src/cli/options/cluster-options.ts';
import { readOptions } from '../../src/cli/options/options.ts';
import { planClusters } from '../../src/cli/simulate/plan-clusters.ts';
import { runSimulation, simulationSchema } from '../../src/cli/simulate/simulated-run.ts';

const workload = { workload: 'plain', input: '8000', output: '50', requests: '20', rate: '0.1', seed: '2' };

async function simulate(flags: Record<string, unknown>) {
  return (await runSimulation(readOptions(simulationSchema, { ...workload, prefill: '1', decode: '1', ...flags })))
    .outcome;
}

const clusterOf = (flags: Record<string, unknown>) => readOptions(z.object(clusterFields), flags);

describe('the hardware of a role', () => {
  it('is that of all instances, unless the role overrides it', async () => {
    const all = await simulate({ hardware: 'h100x8', tp: '4' });
    const each = await simulate({ prefillHardware: 'h100x8', decodeHardware: 'h100x8', prefillTp: '4', decodeTp: '4' });
    expect(each.stateHash).toBe(all.stateHash);
  });

  it('sets prefill and decode speed separately', async () => {
    const fast = await simulate({ hardware: 'h100x8' });
    const slow = await simulate({ hardware: 'h20x8' });
    const disaggregated = await simulate({ prefillHardware: 'h100x8', decodeHardware: 'h20x8' });
    expect(disaggregated.tbtUs.mean).toBe(slow.tbtUs.mean);
    // The exposed part of the hand-off is equal, as the NICs are.
    expect(Math.abs(disaggregated.ttftUs.mean - fast.ttftUs.mean)).toBeLessThan(0.02 * fast.ttftUs.mean);
    expect(slow.ttftUs.mean).toBeGreaterThan(3 * fast.ttftUs.mean);
    const narrow = await simulate({ hardware: 'h100x8', decodeNicGbps: '10' });
    expect(narrow.ttftUs.mean).toBeGreaterThan(fast.ttftUs.mean + 500_000);
  });

  it('is priced by machine', () => {
    const price = (flags: Record<string, unknown>) => pricePerHourOf(clusterOf(flags));
    expect(price({ prefill: '2', decode: '3', hardware: 'h100x8', decodeHardware: 'h20x8' })).toBe(2 * 55 + 3 * 24);
    expect(price({ prefill: '2', decode: '3', hardware: 'h100x8', decodeTp: '4' })).toBe(2 * 55 + 2 * 55);
    expect(price({ mixed: '2', tp: '16', mixedPricePerHour: '10' })).toBe(40);
  });

  it('of standby instances starts on demand, loads its weights, and has no price before', async () => {
    const flags = {
      mixed: '1',
      hardware: 'a100-80',
      model: 'llama2-7b',
      standby: '1',
      standbyHardware: 'a100x8',
      standbyTp: '2',
    };
    const [mixed, standby] = instanceSpecs(clusterOf({ ...flags, cacheBlocks: '10' }), false);
    // 6,738 million weights of two bytes in matrices and embeddings, at a gigabyte a second.
    expect([mixed?.startUs, standby?.startUs]).toEqual([undefined, 60_000_000 + 13_476_299]);
    expect([mixed?.machine.blocks, standby?.machine.blocks]).toEqual([10, undefined]);
    const [, warm] = instanceSpecs(clusterOf({ ...flags, startS: '1', weightLoadGbps: '800' }), false);
    expect(warm?.startUs).toBe(1_000_000 + 134_763);
    expect(pricePerHourOf(clusterOf(flags))).toBe(4);
    await expect(simulate({ standby: '1' })).rejects.toThrow('Cannot use --standby 1: it needs mixed instances');
    const mixedOnly = { prefill: '0', decode: '0', mixed: '1', standby: '1' };
    await expect(simulate({ ...mixedOnly, borrow: true })).rejects.toThrow('Cannot use --standby with --borrow');
    await expect(simulate({ ...mixedOnly, faults: ['loss:ratio=0.1'] })).rejects.toThrow('--standby with --faults');
  });

  it('over two machines has the memory, NICs and host memory of both, and slower all-reduces', () => {
    const [one] = instanceSpecs(clusterOf({ mixed: '1' }), false);
    const [two] = instanceSpecs(clusterOf({ mixed: '1', tp: '16' }), false);
    const [stages] = instanceSpecs(clusterOf({ mixed: '1', tp: '8', pp: '2' }), false);
    if (one === undefined || two === undefined || stages === undefined) throw new Error('no instance');
    expect(two.nic.bytesPerSecond).toBe(2 * one.nic.bytesPerSecond);
    const receiveTokensOf = (spec: typeof one) => spec.machine.handOff?.receiveTokens ?? 0;
    expect(Math.abs(receiveTokensOf(two) - 2 * receiveTokensOf(one))).toBeLessThan(2);
    // 16 devices hold each of the 8 KV heads twice; stages of 8 devices hold them once.
    expect(two.machine.cost.kvCapacityTokens).toBeLessThan(1.3 * one.machine.cost.kvCapacityTokens);
    expect(stages.machine.cost.kvCapacityTokens).toBeGreaterThan(2 * one.machine.cost.kvCapacityTokens);
    const shape = { rows: 4096, keyRows: 8_390_656, decodeRows: 0, decodeKeys: 0, logitRows: 0 };
    const us = [one, two, stages].map(({ machine }) => machine.cost.stepUs(shape));
    // 160 all-reduces of 64 MiB: 2 x 7/8 over links of 200 GB/s, then as much as all of it over NICs of 100 GB/s, at 0.7; 2 messages of 10 us each.
    const computeUs = (us[0] ?? 0) - 1300 - 160 * ((1.75 * 67_108_864) / 140_000 + 5);
    // The projections of the replicated KV heads: 80 layers of 2 x 8 heads of 128, at 0.6 of 16 x 312 Tflops.
    const replicatedUs = (2 * 80 * 8192 * 128 * 16 * 4096) / (16 * 312e6 * 0.6);
    const reducesUs = 160 * ((1.75 * 67_108_864) / 140_000);
    const expected = computeUs / 2 + replicatedUs + 1300 + reducesUs + 160 * (5 + 67_108_864 / 70_000 + 20);
    expect(Math.abs((us[1] ?? 0) - expected)).toBeLessThan(2);
    // Two micro-batches run at once: half of the rows in each stage, of which 32 MiB leave the machine.
    const stagedUs = (computeUs + reducesUs + 67_108_864 / 70_000) / 2 + 1300 + 160 * 5 + 10;
    expect(Math.abs((us[2] ?? 0) - stagedUs)).toBeLessThan(2);
  });
});

describe('the cheapest cluster', () => {
  it('may prefill and decode on different hardware, and its command replays it', async () => {
    const flags = { workload: 'simulated-16k', requests: '60', rate: '1.5', seed: '3', ttftSlo: '8s', tbtSlo: '60ms' };
    const settings = { instancesMax: 6, within: 0.95, flags, hardware: ['h100x8', 'h20x8'] };
    const runs: string[] = [];
    const { winner, command } = await planClusters(settings, (_tried, next) => runs.push(next));
    expect(runs.some((next) => /of h100x8 \(tp \d\) \+ \d decode of h20x8/.test(next))).toBe(true);
    const words = command.split(' ').slice(2);
    const replayed = Object.fromEntries(
      words.flatMap((word, i) =>
        i % 2 === 0 ? [[word.slice(2).replace(/-(\w)/g, (_, c: string) => c.toUpperCase()), words[i + 1]]] : [],
      ),
    );
    const options = readOptions(simulationSchema, replayed);
    expect(pricePerHourOf(options)).toBe(winner.pricePerHour);
    const { outcome } = await runSimulation(options);
    expect(outcome.withinSlo / outcome.requests).toBe(winner.share);
  });
});
