// Recordings of fleets and of joined engines over fake engines, and their replay.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, expect, it } from 'vitest';
import { openRecording } from '../../../src/cli/serve/recording/open-recording.ts';
import { replayRecording } from '../../../src/cli/simulate/replay/replay-run.ts';
import { replayFlags } from '../../../src/cli/simulate/replay/replay-settings.ts';
import { engineRoot } from '../../../src/core/fleet/engine-root.ts';
import type { InferencePort } from '../../../src/core/protocol/ports.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { FleetCluster } from '../../../src/runtime/fleet/fleet-cluster.ts';
import { JoinedEngine } from '../../../src/runtime/fleet/joined-engine.ts';
import { agreeOn } from '../../../src/runtime/processes/agree.ts';
import { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { FakeEngine, type FakeEngineOptions } from '../../runtime/fleet/fake-engine.ts';
import { admitAll, answerOf, liveRequest } from '../../runtime/threads/instances.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-fleet-replay-'));
const opened: { close(): unknown }[] = [];
/** Long enough that a request which arrives at once goes elsewhere. */
const prefillMs = 30;
const log = (): void => {};
afterAll(() => rmSync(folder, { recursive: true }));
afterEach(async () => {
  for (const each of opened.splice(0).toReversed()) await each.close();
});

type Recorded = Parameters<typeof openRecording>[1];
const model = { id: 'fake', kvTokenBytes: 3072, shape: { layers: 6, heads: 4, headDim: 16 } } as Recorded['model'];
const options = { queue: 64, eviction: 'lru', pinMemory: 0, admission: 'none', copyHotPrefixes: true };

async function engine(own: FakeEngineOptions): Promise<FakeEngine> {
  const started = await FakeEngine.start(own);
  opened.push({ close: () => started.kill() });
  return started;
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

/** Sends turns of a conversation for each engine, the first ones at once, and records them. Returns the file. */
async function record(cluster: Recorded['cluster'], name: string, engines: readonly FakeEngine[]): Promise<string> {
  const path = join(folder, `${name}.jsonl`);
  const { port, close } = await openRecording({ ...options, record: path } as never, { model, cluster }, log);
  // The next placements know the blocks of these.
  const indexed = () => until(() => cluster.instances().every(({ pages }, i) => pages.cached === engines[i].blocks));
  await Promise.all(engines.map((_, conversation) => ask(port, conversation, 1)));
  await indexed();
  for (const turn of [2, 3])
    for (const conversation of engines.keys()) {
      await ask(port, conversation, turn);
      await indexed();
    }
  await close();
  return path;
}

async function ask(port: InferencePort, conversation: number, turn: number): Promise<void> {
  const prompt = Array.from({ length: 100 * turn }, (_, i) => 5000 * conversation + i);
  await answerOf(port as never, liveRequest(`${conversation}-${turn}`, prompt, 20));
}

interface Line {
  readonly instances?: readonly object[];
  readonly steps?: readonly (readonly number[])[];
  readonly input_length?: number;
  readonly [field: string]: unknown;
}

/** The lines of a file whose steps hold each token that an engine computed once. */
function linesOf(path: string): readonly Line[] {
  const lines = readFileSync(path, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Line);
  const computed = lines.reduce((sum, { input_length: input, output_length: output, cached_tokens: cached }) => {
    return input === undefined ? sum : sum + input - Number(cached) + Number(output) - 1;
  }, 0);
  const rows = lines.flatMap(({ steps = [] }) => steps.map(([, , , rows]) => rows));
  expect(rows.reduce((sum, each) => sum + each, 0)).toBe(computed);
  return lines;
}

const replay = (path: string, own: object = {}) => replayRecording(replayFlags({ replay: path, ...own }), false);

it('replays a fleet with its placements and hits, without text', async () => {
  const engines = [
    await engine({ blockTokens: 32, prefillMs }),
    await engine({ kind: 'sglang', blockTokens: 32, prefillMs }),
  ];
  const urls = engines.map(({ url }) => url);
  const cluster = new FleetCluster({
    ...{ engines: urls.map((url) => ({ url })), admission: admitAll, queueMax: 64, traces: true, log },
  });
  opened.push(cluster);
  await cluster.settled();
  await until(() => engines.every(({ hasSubscriber }) => hasSubscriber));
  const path = await record(cluster, 'fleet', engines);
  const lines = linesOf(path);
  expect(lines[0].settings).toMatchObject({ queue: 64, copyHotPrefixes: true });
  expect(lines.find(({ instances }) => instances !== undefined)?.instances).toMatchObject([
    { name: urls[0], role: 'mixed', engine: 'vllm', takes_priorities: false, blocks: 4096 },
    { name: urls[1], role: 'mixed', engine: 'sglang', blocks: 2048 },
  ]);
  const { requests, completed, instances, hitRatioTokens } = await replay(path);
  expect([requests, completed, instances]).toEqual([
    6,
    { recorded: 6, simulated: 6 },
    urls.map((url) => `mixed ${url}`),
  ]);
  // On a busy machine a turn may be predicted to be computed sooner elsewhere: the engines know what they found.
  const found = engines.reduce((sum, { foundTokens }) => sum + foundTokens, 0);
  expect(found).toBeGreaterThan(0);
  expect(hitRatioTokens.recorded).toBeCloseTo(found / 1200);
  expect(hitRatioTokens.simulated).toBeGreaterThan(0);
});

it('replays the gateway of joined engines, by recorded or by measured step times', async () => {
  const engines = [
    await engine({ blockTokens: 32, prefillMs }),
    await engine({ kind: 'sglang', blockTokens: 32, prefillMs }),
  ];
  const [hub, root] = [new MemoryHub(), engineRoot('model')];
  const agreed = (bus: ReturnType<MemoryHub['connect']>, own: typeof root | undefined) =>
    agreeOn(bus, { modelFingerprint: 'model', root: own });
  const bus = hub.connect();
  const own = { bus, name: 'gateway', incarnation: 1, queueMax: 64, admission: admitAll, timeoutUs: 60e6, log };
  const gateway = new ClusterGateway({ ...own, agreement: await agreed(bus, undefined), traces: true });
  opened.push(gateway);
  for (const [i, { url }] of engines.entries()) {
    const bus = hub.connect();
    const own = { bus, name: `engine-${i}`, root, vocabSize: 100_000, log, onReplaced: () => {} };
    opened.push(new JoinedEngine({ ...own, agreement: await agreed(bus, root), engine: { url } }));
    await until(() => gateway.instances().length === i + 1 && engines[i].hasSubscriber);
  }
  const path = await record(gateway, 'joined', engines);
  linesOf(path);
  const replayed = await replay(path);
  expect([replayed.completed.simulated, replayed.instances]).toEqual([6, ['mixed engine-0', 'mixed engine-1']]);
  const fleet = join(folder, 'machines.yaml');
  writeFileSync(fleet, "engines: [{ url: 'http://any:1', simulated: { hardware: h100 } }]");
  const tables = fileURLToPath(new URL('../../data/kernel-latencies', import.meta.url));
  const again = () => replay(path, { fleet, tables, model: 'llama3-8b' });
  const measured = await again();
  expect(measured.completed).toEqual({ recorded: 6, simulated: 6 });
  // Nothing of a step that a table times follows from the fake engines.
  expect(measured.tbtMs.simulated.p50).toBe((await again()).tbtMs.simulated.p50);
});

it.each([
  [{ fleet: 'a.yaml' }, 'add the other one'],
  [{ model: 'llama3-8b' }, 'it needs --fleet and --tables'],
  [{ fleet: 'a.yaml', tables: 'b', stepTimes: 'fitted' }, 'Cannot use --step-times with --tables'],
])('refuses %j', (own, reason) => {
  expect(() => replayFlags({ replay: 'file', ...own })).toThrow(reason);
});
