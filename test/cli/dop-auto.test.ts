// `--dop auto` of `serve` and `join`: the chosen workers run and have the bits of one instance; combinations that cannot run are not chosen.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { servedAttentionWorkers } from '../../src/cli/options/attention-worker-settings.ts';
import {
  defaultInstance,
  type InstanceJoinOptions,
  type InstanceOptions,
  joinOptionsSchema,
  readOptions,
  type ServeOptions,
  serveOptionsSchema,
} from '../../src/cli/options/options.ts';
import { withChosenDop, withChosenDops } from '../../src/cli/serve/attention/choose-attention-workers.ts';
import { measureTeams } from '../../src/cli/serve/attention/thread-speeds.ts';
import type { TeamSpeeds } from '../../src/core/attention-workers/thread-planner.ts';
import { loadNative } from '../../src/kernel/native/addon.ts';
import { openModel } from '../../src/weights/open-model.ts';
import { answerOf, liveCluster, livePrompt, liveRequest, liveSettings } from '../runtime/threads/instances.ts';

function optionsOf(flags: Record<string, unknown>): ServeOptions {
  return readOptions(serveOptionsSchema, { dop: 'auto', threads: '4', kvMemory: '32m', context: '2048', ...flags });
}

/** Arithmetic grows with the threads, and one thread reaches the bandwidth of the memory. */
const oneThreadReadsAll = [1, 2, 4].map((threads): TeamSpeeds => {
  return { threads, operationsPerSecond: threads * 1e9, weightBytesPerSecond: 1e9, kvBytesPerSecond: 1e9 };
});
const measured = () => ({ speeds: oneThreadReadsAll, weightBytes: 1 });
/** Attention reads faster with every thread. */
const allScale = () => ({
  speeds: oneThreadReadsAll.map((speeds) => ({ ...speeds, kvBytesPerSecond: speeds.threads * 1e9 })),
  weightBytes: 1,
});

async function choose(flags: Record<string, unknown>, measure: typeof measureTeams = measured) {
  const lines: string[] = [];
  const options = optionsOf(flags);
  const own = options.instances?.find(({ role }) => role !== 'prefill') ?? defaultInstance;
  const chosen = await withChosenDop(options, own, (line) => lines.push(line), measure);
  expect(lines.length).toBe(1);
  return { workers: servedAttentionWorkers(chosen), line: lines[0] };
}

describe.skipIf(loadNative() === undefined)('serve --dop auto (needs the native kernels)', () => {
  it('runs the chosen workers with the bits of one instance, and logs the figures', async () => {
    const { workers, line } = await choose({});
    expect(workers).toMatchObject({ modelWorkers: 1, threads: 1, batches: 2, partition: 'heads', attentionThreads: 1 });
    expect(line).toMatch(
      /chooses \(1,1\): 1 model worker on 3 threads, 1 attention worker on 1 thread, 2 batches, t_m /,
    );
    expect(line).toMatch(/tokens\/s with \d+ sequences; one instance \d+ tokens\/s/);
    if (workers === undefined || 'processes' in workers) throw new Error('The workers are not threads');
    const settings = { ...liveSettings, threads: 4 };
    const [divided, one] = [[{ ...settings, attentionWorkers: workers }], [settings]].map((own) => liveCluster(own));
    try {
      const answersOf = (cluster: typeof one) =>
        Promise.all(
          [1, 2, 3].map((kind) => answerOf(cluster, liveRequest(`${kind}`, livePrompt(kind, 90 * kind), 12))),
        );
      await Promise.all([divided.ready(), one.ready()]);
      const answers = await answersOf(divided);
      expect(answers).toEqual(await answersOf(one));
      expect(answers[0].tokens.length).toBe(12);
    } finally {
      await Promise.all([divided.close(), one.close()]);
    }
  });

  it('chooses no attention workers where one instance is faster, and names the best division', async () => {
    const { workers, line } = await choose({}, allScale);
    expect(workers).toBeUndefined();
    expect(line).toMatch(/chooses no attention workers: one instance \d+ tokens\/s .*; the best division, \(\d,\d\): /);
  });

  it.each([
    [{ borrow: true }, 'pages at attention workers cannot be lent: remove --borrow'],
    [{ hostMemory: '64m' }, 'pages at attention workers have no lower tier: remove --host-memory'],
    [{ instances: '2' }, 'there are 2 instances, and only prefill instances can be beside one decode instance'],
  ])('chooses none beside options that exclude them: %j', async (flags, reason) => {
    const { workers, line } = await choose(flags);
    expect(workers).toBeUndefined();
    expect(line).toBe(`--dop auto chooses no attention workers: ${reason}`);
  });

  it('chooses none on one thread', async () => {
    const one = () => ({ speeds: oneThreadReadsAll.slice(0, 1), weightBytes: 1 });
    const { workers, line } = await choose({ threads: '1' }, one);
    expect(workers).toBeUndefined();
    expect(line).toMatch(/no division of the threads can run/);
  });

  it('chooses for an instance that joins a cluster, and none for a prefill instance', async () => {
    const joined = async (flags: Record<string, unknown>) => {
      const given = { dop: 'auto', threads: '4', kvMemory: '32m', context: '2048', ...flags };
      const options = readOptions(joinOptionsSchema, given) as InstanceJoinOptions;
      const lines: string[] = [];
      const chosen = await withChosenDop(options, defaultInstance, (line) => lines.push(line), measured);
      return { workers: servedAttentionWorkers(chosen), lines };
    };
    const decode = await joined({ role: 'decode', attentionWorkers: 'processes' });
    expect(decode.workers).toMatchObject({ processes: 1, batches: 2, attentionThreads: 1 });
    const prefill = await joined({ role: 'prefill' });
    expect(prefill).toEqual({
      workers: undefined,
      lines: [
        '--dop auto chooses no attention workers: a prefill instance computes attention itself: remove --role prefill',
      ],
    });
  });

  it('chooses for each instance of serve --nats, once for equal threads', async () => {
    const roles: InstanceOptions[] = [
      { role: 'prefill', threads: 2 },
      { role: 'decode', threads: 4 },
      { role: 'decode', threads: 4 },
      { role: 'decode', threads: 1 },
    ];
    const options = optionsOf({ nats: 'nats://127.0.0.1:4222', instances: roles, threads: '11' });
    const measuredTeams: number[] = [];
    const measure: typeof measureTeams = (_files, threads) => {
      measuredTeams.push(threads);
      return { ...measured(), speeds: oneThreadReadsAll.filter((team) => team.threads <= threads) };
    };
    const chosen = await withChosenDops(options, roles, () => {}, measure);
    expect(measuredTeams).toEqual([4, 1]);
    expect(chosen.map(({ dop, attentionThreads }) => [dop, attentionThreads])).toEqual([
      ['auto', undefined],
      ['1,1', 1],
      ['1,1', 1],
      [undefined, undefined],
    ]);
  });

  it('measures the teams of a model', () => {
    const files = openModel(liveSettings.model);
    const { speeds, weightBytes } = measureTeams(files, 2, { weights: 'native', inputs: 'bf16' }, 1);
    files.close();
    expect(speeds.map(({ threads }) => threads)).toEqual([1, 2]);
    for (const speed of speeds.flatMap((each) => Object.values(each))) expect(speed).toBeGreaterThan(0);
    expect(weightBytes).toBeGreaterThan(1);
    expect(weightBytes).toBeLessThan(1.2);
  });
});

it('--dop takes auto from a flag or a config file, and no other word', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-dop-'));
  const config = join(folder, 'auto.yaml');
  const read = (text: string) => {
    writeFileSync(config, text);
    return readOptions(serveOptionsSchema, { config }).dop;
  };
  expect(optionsOf({}).dop).toBe('auto');
  expect(read('dop: auto\nattention-workers: processes\n')).toBe('auto');
  expect(() => read('dop: automatic\n')).toThrow(
    'Cannot use --dop automatic: write MODEL,ATTENTION, for example 1,2, or auto',
  );
  rmSync(folder, { recursive: true });
});

it.each([
  [
    { attentionWorkers: '127.0.0.1:9101,127.0.0.1:9102' },
    'Cannot use --dop auto: it divides the threads of this machine, and --attention-workers has 2 addresses: write --dop 1,2',
  ],
  [{ attentionThreads: '1' }, 'Cannot use --attention-threads: --dop auto chooses it: write --dop 1,2'],
])('--dop auto is refused beside options that state what it chooses: %j', (flags, message) => {
  expect(() => servedAttentionWorkers(optionsOf(flags))).toThrow(message);
});
