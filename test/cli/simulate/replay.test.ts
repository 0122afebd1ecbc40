// A replay of a simulated "server": its recording alone gives the same placements and times.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { replayRecording } from '../../../src/cli/simulate/replay/replay-run.ts';
import { replayFlags, replaySettings } from '../../../src/cli/simulate/replay/replay-settings.ts';
import { replayedCluster } from '../../../src/cli/simulate/replay/replayed-cluster.ts';
import { readRecording } from '../../../src/cli/simulate/trace-file.ts';
import { LearnedTransfers } from '../../../src/core/router/placement/learned-transfers.ts';
import { PrefillObserver } from '../../../src/core/router/placement/prefill-observer.ts';
import { batchLimits } from '../../../src/core/scheduler/executor/token-limits.ts';
import { ExternalEngines } from '../../../src/sim/engine/external-engines.ts';
import { LearnedCost } from '../../../src/sim/engine/learned-cost.ts';
import { type InstanceSpec, Simulation } from '../../../src/sim/engine/simulation.ts';
import { RequestRecorder } from '../../../src/sim/report/request-recorder.ts';
import { type RecordedStepRow, recordingLine } from '../../../src/trace/recording/recording.ts';
import { pageTokens } from '../../../src/util/step.ts';
import { drawnRequests, UnevenCost } from '../../sim/uneven-run.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-replay-'));
afterAll(() => rmSync(folder, { recursive: true }));

const kvTokenBytes = 3072;
const [toInstanceUs, deliveryUs, blocks, receiveBlocks] = [300, 90, 128, 64];
const times = { stepUs: 1000, rowUs: 60, keyUs: 0.02, decodeRowUs: 0, logitRowUs: 50 };
const sizes = { layers: 6, kvBytesPerToken: kvTokenBytes, kvCapacityTokens: 4096, activationBytesPerToken: 1 };

interface RecordOptions {
  readonly skewUs?: number;
  /** The instances are external engines. */
  readonly engine?: 'vllm';
}

/** Writes the recording of a run whose instances have these roles, with clocks ahead by `skewUs`. Returns its path. */
function record(
  roles: readonly InstanceSpec['role'][],
  count: number,
  { skewUs = 0, engine }: RecordOptions = {},
): string {
  const requests = drawnRequests(count, 25);
  const steps: RecordedStepRow[] = [];
  const lines: string[] = [];
  const recorder = new RequestRecorder((record) => {
    const { index, arrivalMs, instance, decodeInstance, ttftMs, tbtMs, e2eMs, outcome } = record;
    const { inputTokens, outputTokens, blocks: ids } = requests[index];
    lines.push(
      recordingLine({
        ...{ timestamp: arrivalMs, inputLength: inputTokens, outputLength: outputTokens, attempts: 1 },
        ...{ hashIds: [...ids.slice(0, Math.floor(inputTokens / pageTokens))], maxTokens: outputTokens, instance },
        ...{ outcome: outcome === 'completed' ? 'finished' : 'failed', decodeInstance, tbtMs, endMs: e2eMs },
        ...(instance === decodeInstance && { prefilledMs: ttftMs }),
        ...{ cachedTokens: record.cachedTokens, firstTokenMs: ttftMs, startedMs: record.queueMs },
      }),
    );
  });
  const simulation = new Simulation({
    instances: roles.map((role) => ({
      ...{ role, nic: { bytesPerSecond: 2e9, us: deliveryUs } },
      machine: {
        ...{
          blockTokens: pageTokens,
          eviction: 'lru',
          limits: batchLimits,
          cost: new UnevenCost(times, sizes),
          blocks,
        },
        ...{ coalesce: false, reportsAll: true, ...(engine === undefined && { learns: true, aheadOfUse: true }) },
        handOff: { layerWise: true, rechecksAdmission: true, receiveTokens: 2048, receivePages: receiveBlocks },
      },
    })),
    ...{ linkBytesPerSecond: undefined, blockTokens: pageTokens, queueMax: 256, checking: false },
    placement: { kind: 'cache-aware', seed: [0, 0], balancingThreshold: 1.5 },
    admission: { kind: 'none', slo: undefined, decodeUs: 0 },
    ...(engine !== undefined
      ? { external: new ExternalEngines(roles.length) }
      : {
          learned: {
            prefills: new PrefillObserver(roles.map(() => 0)),
            transfers: new LearnedTransfers(roles.length, kvTokenBytes),
            steps: roles.map(() => new LearnedCost(sizes)),
          },
        }),
    threads: { toInstanceUs: () => toInstanceUs, receivedUs: (nowUs) => nowUs + deliveryUs },
    stepListener: (instance, at, { rows, keyRows, decodeRows, decodeKeys, logitRows }, [us]) => {
      steps.push([instance, at + skewUs, us, rows, keyRows, decodeRows, decodeKeys, logitRows, deliveryUs]);
    },
    requestListener: recorder,
  });
  for (const request of requests) simulation.arrive(request);
  simulation.finish();
  const settings = { queue: 256, eviction: 'lru', pinMemory: 0, balancingThreshold: 1.5 };
  const instances = roles.map((role, i) => ({
    ...{ name: String(i), role, blocks, receiveBlocks, engine, stepCost: [1000, 60, 0.02, 0, 50] },
  }));
  const path = join(folder, `${roles.join('-')}.jsonl`);
  const header = { recording: 1, timeUnit: 'ms', started: '', model: 'toy', blockTokens: pageTokens } as const;
  const first = recordingLine({ ...header, kvTokenBytes, layers: 6, heads: 4, headDim: 16, settings });
  const all = [first, recordingLine({ atMs: 0, instances }), ...lines, recordingLine({ steps })];
  writeFileSync(path, `${all.join('\n')}\n`);
  return path;
}

it.each([
  [['mixed'] as const, 40, {}],
  [['mixed', 'mixed'] as const, 80, {}],
  [['prefill', 'prefill', 'decode'] as const, 80, {}],
  [['mixed', 'mixed'] as const, 60, { engine: 'vllm' } as const],
])('repeats the placements and latencies of %j', async (roles, count, own) => {
  const replay = await replayRecording(replayFlags({ replay: record(roles, count, own) }), false);
  expect(replay.samePlacements).toBeGreaterThanOrEqual(0.95 * count);
  expect(replay.completed).toEqual({ recorded: count, simulated: count });
  const { recorded, simulated } = replay.hitRatioTokens;
  expect(Math.abs(simulated - recorded)).toBeLessThan(0.02);
  for (const ratio of [replay.ttftRatio, replay.tbtRatio]) expect(Math.abs((ratio ?? 0) - 1)).toBeLessThan(0.15);
});

it('times every step by the fit if asked: decisions are those of the simulated machines', async () => {
  const flags = { replay: record(['mixed'], 40), stepTimes: 'fitted' };
  const { samePlacements, ttftRatio, tbtRatio } = await replayRecording(replayFlags(flags), false);
  expect(samePlacements).toBe(40);
  for (const ratio of [ttftRatio, tbtRatio]) expect(Math.abs((ratio ?? 0) - 1)).toBeLessThan(0.25);
});

it('notes that the clocks of instances may differ from that of the gateway', async () => {
  const notesOf = async (skewUs: number) =>
    (await replayRecording(replayFlags({ replay: record(['mixed'], 10, { skewUs }) }), false)).notes;
  expect(await notesOf(0)).toEqual([]);
  expect(await notesOf(-60e6)).toEqual([expect.stringContaining('No recorded step matches')]);
  expect(await notesOf(60e6)).toEqual([expect.stringContaining('ms after arrivals')]);
});

it.each([true, false])('copies hot prefixes as the server did: %j', async (copyHotPrefixes) => {
  const flags = replayFlags({ replay: record(['mixed'], 1) });
  const { header, ...rest } = await readRecording(flags.replay);
  const own = copyHotPrefixes ? { ...header.settings, copyHotPrefixes } : header.settings;
  const recording = { ...rest, header: { ...header, settings: own } };
  const { placement } = replayedCluster(recording, replaySettings(recording, flags), () => 0);
  expect(placement.copiesHotPrefixes).toBe(copyHotPrefixes);
});

it('refuses flags that the recording determines', () => {
  expect(() => replayFlags({ replay: 'a', mixed: '2' })).toThrow('Cannot use --mixed with --replay');
});
