// The frames of the dashboard: bounded size, requests with reasons, latencies against SLOs, keys.
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { classLatencies } from '../../../src/gateway/dashboard/class-latencies.ts';
import { recordingApp } from '../../../src/gateway/dashboard/dashboard-routes.ts';
import type { DashboardFrame } from '../../../src/gateway/dashboard/frame.ts';
import { placementReason } from '../../../src/gateway/dashboard/placement-reason.ts';
import { createApp } from '../../../src/gateway/http/app.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { gatewayOptions } from '../world.ts';
import { SyntheticPort, syntheticCluster, traceOf } from './synthetic-cluster.ts';

const webFolder = fileURLToPath(new URL('../../../web', import.meta.url));

function dashboardOf(instances: number, requests: number) {
  const synthetic = syntheticCluster(instances, requests);
  const { cluster } = synthetic;
  const port = new SyntheticPort(synthetic, 'x');
  const keys = new ApiKeys({ users: ['user'], admins: ['admin'] });
  const app = createApp(gatewayOptions(port, { cluster, keys, webFolder }));
  const get = (path: string, key?: string) =>
    app.request(path, { headers: key === undefined ? {} : { authorization: `Bearer ${key}` } });
  return { get, frame: async (path = '/api/dashboard') => (await (await get(path, 'admin')).json()) as DashboardFrame };
}

describe('the dashboard', () => {
  it('serves its files without a key, with a policy that loads nothing from elsewhere, and its data to admins', async () => {
    const { get } = dashboardOf(2, 3);
    const page = await get('/dashboard');
    expect(page.headers.get('content-security-policy')).toContain("default-src 'none'; script-src 'self'");
    const text = await page.text();
    expect(text).not.toMatch(/<script>|https?:/);
    for (const [, path] of text.matchAll(/(?:src|href)="(\/[^"]+)"/g)) expect((await get(path ?? '')).status).toBe(200);
    const statuses = ['user', 'admin', undefined].map(async (key) => (await get('/api/dashboard', key)).status);
    expect(await Promise.all(statuses)).toEqual([403, 200, 401]);
    expect((await get('/dashboard/dashboard/../../package.json')).status).toBe(404);
    expect((await get('/api/dashboard?since=x', 'admin')).status).toBe(400);
  });

  it('describes requests by parts, placements, misses, and predicted and actual times', async () => {
    const { requests, instances, columns } = await dashboardOf(4, 8).frame();
    const row = requests.find(({ id }) => id === 'chatcmpl-0003-0');
    expect(row?.parts.map(([kind, from, to]) => [kind, Math.round(from), to && Math.round(to)])).toEqual([
      ['queue', 0, 4],
      ['fetch', 1, 4],
      ['prefill', 5, 16],
      ['prefill', 18, 29],
      ['hand-off', 34, 44],
      ['decode', 44, 243],
    ]);
    expect(row?.placements).toEqual([
      'decode 3: lowest predicted TTFT of 2 instances (wait 2 ms + prefill 30 ms, 320 tokens cached; prefill 0 had 39 ms);' +
        ' it fetches 160 tokens of the prefix from prefill 0; decode 1 decodes',
    ]);
    expect(row).toMatchObject({ blocks: { hits: 30, never_seen: 20, evicted: 6 }, ttft_ms: [37.5, 44], end: 'length' });
    const refused = requests.find(({ state }) => state === 'refused');
    expect(refused?.end).toBe('ttft: Cannot admit request: predicted TTFT of 3 s');
    const cells = new Map(columns.map((name, i) => [name, instances[1]?.[i]]));
    expect(cells.get('ages')).toEqual([70, 56, 42, 28, 14]);
    expect(cells.get('owners')).toHaveLength(3);
  });

  it('sends only requests that have changed since the frame before', async () => {
    const { frame } = dashboardOf(2, 5);
    const first = await frame();
    expect(first.requests).toHaveLength(5);
    expect((await frame(`/api/dashboard?since=${first.now_ms + 1}`)).requests).toEqual([]);
  });

  it('sends less than 200 kB for 1,000 instances', async () => {
    const { get } = dashboardOf(1000, 500);
    const text = await (await get('/api/dashboard', 'admin')).text();
    expect(text.length).toBeLessThan(200_000);
    expect((JSON.parse(text) as DashboardFrame).instances).toHaveLength(1000);
  });
});

describe('a recording', () => {
  it('is served with the page under its name', async () => {
    const app = recordingApp(webFolder, 'my run.json', '{"object":"kvasir.dashboard.recording"}');
    expect((await app.request('/dashboard')).status).toBe(200);
    expect(await (await app.request('/dashboard/runs/my%20run.json')).json()).toHaveProperty('object');
    expect((await app.request('/dashboard/runs/other.json')).status).toBe(404);
  });
});

describe('latencies by class', () => {
  it('have percentiles, and the share within an absolute bound', () => {
    const traces = Array.from({ length: 30 }, (_, i) => traceOf(i, 2));
    const [none, agent, chat] = classLatencies(traces, (name) =>
      name === 'chat'
        ? { ttft: { us: 43_000 }, tbt: { us: 1_000 } }
        : name === 'agent'
          ? { ttft: { times: 10 } }
          : undefined,
    );
    expect([none?.name, agent?.name, chat?.name]).toEqual(['', 'agent', 'chat']);
    expect(chat?.ttft).toMatchObject({ requests: 9, p50: 43, p99: 45, slo: 43 });
    expect(chat?.ttft?.within).toBeCloseTo(5 / 9);
    expect(chat?.tbt?.within).toBe(0);
    expect(agent?.ttft).toMatchObject({ slo: '10x', within: null });
  });
});

describe('the reason of a placement', () => {
  const [placement] = traceOf(1, 2).placements;
  const reasonOf = (changed: object) => placementReason({ ...placement, ...changed } as never, (i) => `i${i}`);

  it('names the policy where another instance had a lower wait plus prefill', () => {
    expect(reasonOf({ instance: 0 })).toMatch(/^i0: chosen over a lower wait plus prefill, .*; i1 had 32 ms\)$/);
  });

  it('names pipelines, inline prefills, and requests without an instance', () => {
    expect(reasonOf({ group: [0, 1] })).toContain('2 instances compute the prompt as a pipeline');
    expect(reasonOf({ inline: true })).toContain('the decode instance computes the short rest');
    expect(reasonOf({ instance: undefined })).toBe('a batch job waits for free memory');
    expect(reasonOf({ instance: undefined, candidates: [] })).toBe('no instance is up');
  });
});
