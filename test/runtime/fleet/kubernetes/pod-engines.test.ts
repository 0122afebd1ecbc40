// Pods of a label selector as engines: lists, watches and their failures, and the fleet that they join and leave.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { FleetCluster } from '../../../../src/runtime/fleet/fleet-cluster.ts';
import { podSchema, readPod } from '../../../../src/runtime/fleet/kubernetes/engine-pod.ts';
import { PodEngines } from '../../../../src/runtime/fleet/kubernetes/pod-engines.ts';
import { type KubernetesApi, PodWatcher } from '../../../../src/runtime/fleet/kubernetes/pod-watcher.ts';
import { request } from '../../../core/instance-world.ts';
import { admitAll } from '../../threads/instances.ts';
import { FakeEngine } from '../fake-engine.ts';
import { FakeApi } from './fake-api.ts';

const opened: { close(): unknown }[] = [];
afterEach(async () => {
  await Promise.all(opened.splice(0).map((each) => each.close()));
});

const times = { pauseMs: { least: 5, most: 20 }, watchMs: 60_000 };

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

async function apiWith(...uids: readonly string[]): Promise<FakeApi> {
  const api = await FakeApi.start();
  opened.push(api);
  for (const uid of uids) api.set(uid, { name: uid, port: 8000 });
  return api;
}

/** What a watcher reports: `+` and the address, `~` and the name of one that leaves, `-` and that of one that is gone. */
function watch(
  api: FakeApi,
  files: Partial<KubernetesApi> = {},
): { seen: string[]; logged: string[]; watcher: PodWatcher } {
  const seen: string[] = [];
  const logged: string[] = [];
  const watcher = new PodWatcher(
    { api: { url: api.url, ...files }, namespace: 'models', selector: 'app=vllm', port: 'http' },
    {
      onPod: (effect) =>
        void seen.push(
          effect.kind === 'join' ? `+${effect.pod.address}` : `${effect.isGone ? '-' : '~'}${effect.pod.name}`,
        ),
      log: (line) => void logged.push(line),
    },
    times,
  );
  opened.push(watcher);
  return { seen, logged, watcher };
}

describe('PodWatcher', () => {
  it('lists page by page, watches from the version of the list, and goes on where a watch broke', async () => {
    const api = await apiWith('a', 'b', 'c');
    api.pageSize = 2;
    const { seen, watcher } = watch(api);
    await watcher.settled;
    expect(seen).toHaveLength(3);
    await until(() => api.watches === 1);
    api.set('d', { name: 'd', ip: 'fd00::1', port: 8001 });
    api.send({ type: 'BOOKMARK', object: { metadata: { resourceVersion: '500' } } });
    await until(() => seen.includes('+[fd00::1]:8001'));
    api.cut();
    await until(() => api.calls.length === 4 && api.watches === 1);
    expect(api.calls.map((query) => query.get('resourceVersion'))).toEqual([null, null, '103', '500']);
    expect(api.calls[0].get('labelSelector')).toBe('app=vllm');
    expect(seen).toHaveLength(4);
  });

  it('lists anew where the version is gone, by an event or by a status', async () => {
    const api = await apiWith('a', 'b');
    const { seen, watcher } = watch(api);
    await watcher.settled;
    await until(() => api.watches === 1);
    api.delete('a', false);
    api.set('c', { name: 'c', port: 8002 }, false);
    api.send({ type: 'ERROR', object: { kind: 'Status', code: 410, message: 'too old resource version' } });
    await until(() => seen.includes('+127.0.0.1:8002'));
    expect(seen).toContain('-a');
    await until(() => api.watches === 1);
    api.watchStatus = 410;
    api.delete('b', false);
    api.cut();
    await until(() => seen.includes('-b'));
    api.watchStatus = 200;
    await until(() => api.watches === 1);
  });

  it('keeps its pods while the API fails, says why once, and reads the token anew', async () => {
    const folder = temporaryFolder();
    const tokenFile = join(folder, 'token');
    writeFileSync(tokenFile, 'first\n');
    const api = await apiWith('a');
    api.status = 403;
    const { seen, logged, watcher } = watch(api, { tokenFile });
    await watcher.settled;
    await until(() => api.calls.length >= 3);
    expect(logged).toEqual([
      'Cannot watch the pods app=vllm of the namespace models: the API answers 403: status 403 on demand',
    ]);
    writeFileSync(tokenFile, 'second\n');
    api.status = 200;
    await until(() => api.watches === 1);
    expect([api.tokens[0], api.tokens.at(-1)]).toEqual(['Bearer first', 'Bearer second']);
    api.send({ type: 'ADDED', object: { metadata: {} } });
    await until(() => logged.length === 2);
    expect(logged[1]).toContain('metadata.name');
    expect(seen).toEqual(['+127.0.0.1:8000']);
  });

  it('logs an outage again after a watch without events', async () => {
    const api = await apiWith('a');
    const { logged } = watch(api);
    for (const outages of [1, 2]) {
      await until(() => api.watches === 1);
      // The watch counts as a recovery after the longest pause.
      await new Promise((resolve) => setTimeout(resolve, 2 * times.pauseMs.most));
      api.status = 403;
      api.cut();
      await until(() => logged.filter((line) => line.includes('answers 403')).length === outages);
      api.status = 200;
    }
  });

  it('speaks TLS with the authority that it is given, and with no other', async () => {
    const folder = temporaryFolder();
    const [own, other] = ['own', 'other'].map((name) => certificateIn(folder, name));
    const api = await FakeApi.start({ key: readFileSync(own.key), cert: readFileSync(own.certificate) });
    opened.push(api);
    api.set('a', { name: 'a', port: 8000 });
    const trusted = watch(api, { caFile: own.certificate });
    await trusted.watcher.settled;
    expect(trusted.seen).toEqual(['+127.0.0.1:8000']);
    for (const caFile of [other.certificate, undefined]) {
      const { seen, logged, watcher } = watch(api, { caFile });
      await watcher.settled;
      expect([seen, logged]).toEqual([[], [expect.stringContaining('DEPTH_ZERO_SELF_SIGNED_CERT')]]);
      watcher.close();
    }
  });
});

/** A certificate of 127.0.0.1 that is its own authority. */
function certificateIn(folder: string, name: string): { key: string; certificate: string } {
  const [key, certificate] = ['key', 'crt'].map((suffix) => join(folder, `${name}.${suffix}`));
  const subject = ['-subj', `/CN=${name}`, '-addext', 'subjectAltName=IP:127.0.0.1'];
  const ec = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  execFileSync('openssl', ['req', '-x509', ...ec, '-keyout', key, '-out', certificate, '-days', '2', ...subject], {
    stdio: 'ignore',
  });
  return { key, certificate };
}

function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-pods-'));
  opened.push({ close: () => rmSync(folder, { recursive: true }) });
  return folder;
}

it('reads ports of KV events, roles and readiness of a pod', () => {
  const object = {
    metadata: {
      ...{ name: 'a', uid: 'u', resourceVersion: '7', labels: { 'llm-d.ai/role': 'decode' } },
      annotations: { 'kvasir/kv-replay-port': '5657', 'kvasir/kv-topic': 'kv' },
    },
    spec: { containers: [{ ports: [{ name: 'kv-events', containerPort: 5557 }, { containerPort: 8000 }] }] },
    status: { podIP: '10.0.0.7', conditions: [{ type: 'Ready', status: 'True' }] },
  };
  expect(readPod(podSchema.parse(object), undefined)).toEqual({
    ...{ uid: 'u', name: 'a', version: '7', address: '10.0.0.7:8000', role: 'decode' },
    kvEvents: { endpoint: 'tcp://10.0.0.7:5557', replay: 'tcp://10.0.0.7:5657', topic: 'kv' },
  });
  expect(readPod(podSchema.parse(object), 'http').address).toBeUndefined();
  expect(readPod(podSchema.parse({ ...object, status: undefined }), 8000).address).toBeUndefined();
});

it('sends requests to ready pods, lets those that leave finish what they have, and moves those of a deleted one', async () => {
  const engines = await Promise.all([FakeEngine.start(), FakeEngine.start(), FakeEngine.start()]);
  for (const each of engines) opened.push({ close: () => each.kill() });
  const api = await apiWith();
  const pod = (i: number) => ({ name: `pod-${i}`, port: Number(new URL(engines[i].url).port) });
  api.set('u0', pod(0));
  const logged: string[] = [];
  const log = (line: string): void => void logged.push(line);
  const cluster = new FleetCluster({ engines: [], grows: true, admission: admitAll, queueMax: 64, log });
  const api0 = { url: api.url };
  const options = { ...{ api: api0, namespace: 'models', selector: 'app=vllm' }, scheme: 'http', engine: {} } as const;
  const pods = new PodEngines(options, cluster, log, times);
  opened.push(cluster, pods);
  await pods.settled();
  expect(cluster.serving).toBe(1);
  const run = (id: string): Promise<string> =>
    new Promise((resolve) => {
      cluster.submit({ ...request(id, [1, 2, 3, 4]), maxTokens: 4 }, ({ kind }) => {
        if (kind === 'finished' || kind === 'failed') resolve(kind);
      });
    });
  engines[0].stallAfter = 1;
  const stalled = run('stalled');
  await until(() => engines[0].calls.length === 1 && api.watches === 1);
  api.set('u1', pod(1));
  await until(() => cluster.serving === 2);
  api.set('u0', { ...pod(0), ready: false });
  await until(() => cluster.serving === 1);
  for (const id of ['a', 'b']) expect(await run(id)).toBe('finished');
  expect([engines[0].calls.length, engines[1].calls.length]).toEqual([1, 2]);
  expect(cluster.roles()).toEqual(['store', 'mixed']);
  // The pod is gone: what it had continues elsewhere.
  api.delete('u0');
  expect(await stalled).toBe('finished');
  expect(engines[1].calls.at(-1)?.prompt).toHaveLength(5);
  // Another pod takes its place.
  api.set('u2', pod(2));
  await until(() => cluster.serving === 2);
  expect(cluster.instances().map(({ name }) => name)).toEqual([engines[2].url, engines[1].url]);
  api.set('u1', { ...pod(1), deleting: true });
  await until(() => logged.some((line) => line === `Engine ${engines[1].url} has left: 1 instance serves`));
  expect(await run('c')).toBe('finished');
  expect(engines[2].calls).toHaveLength(1);
});

it('adds the engine of a pod whose address another pod has when that one leaves', async () => {
  const engine = await FakeEngine.start();
  opened.push({ close: () => engine.kill() });
  const api = await apiWith();
  const pod = { name: 'pod', port: Number(new URL(engine.url).port) };
  api.set('first', pod);
  api.set('second', pod);
  const logged: string[] = [];
  const log = (line: string): void => void logged.push(line);
  const cluster = new FleetCluster({ engines: [], grows: true, admission: admitAll, queueMax: 64, log });
  const selector = { api: { url: api.url }, namespace: 'models', selector: 'a=b' };
  const pods = new PodEngines({ ...selector, scheme: 'http', engine: {} }, cluster, log, times);
  opened.push(cluster, pods);
  await pods.settled();
  expect(logged.filter((line) => line.includes('is not added'))).toHaveLength(1);
  await until(() => api.watches === 1);
  api.delete('first');
  const joins = (): number => logged.filter((line) => line.includes('has joined')).length;
  await until(() => joins() === 2);
  expect(cluster.serving).toBe(1);
  api.delete('second');
  await until(() => cluster.serving === 0);
});
