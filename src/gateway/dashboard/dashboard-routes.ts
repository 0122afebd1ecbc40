// GET /dashboard: the page and its files, which need no key; GET /api/dashboard: a frame of live data for admins.
import { readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { Hono } from 'hono';
import type { ClusterView, InstancesPort } from '../../core/protocol/ports.ts';
import { ApiError } from '../http/errors.ts';
import { type Env, refuseMethod } from '../http/route-context.ts';
import type { ServedModel } from '../http/served-model.ts';
import type { GatewayMetrics } from '../metrics/metrics.ts';
import type { ServedModels } from '../models/served-models.ts';
import type { LatencyBounds } from './class-latencies.ts';
import { dashboardFrame, detailOf } from './frame.ts';

/** Requests that latencies follow from, and prefixes of the tree. */
const [tracesMax, prefixesMax] = [1024, 64];

export interface DashboardOptions {
  readonly models: ServedModels;
  /** The only model of the server. */
  readonly model?: ServedModel | undefined;
  readonly port: InstancesPort;
  readonly cluster: ClusterView;
  readonly sloClasses: ReadonlyMap<string, LatencyBounds>;
  readonly sloDefault?: LatencyBounds | undefined;
  readonly webFolder?: string | undefined;
}

export function addDashboardRoutes(
  app: Hono<Env>,
  options: DashboardOptions,
  metrics: Pick<GatewayMetrics, 'refusals'>,
): void {
  if (options.webFolder !== undefined) addPage(app, options.webFolder);
  const { models, model, port, cluster, sloClasses, sloDefault } = options;
  app.get('/api/dashboard', async (c) => {
    const sinceUs = sinceOf(c.req.query('since'));
    const { nowUs, traces } = cluster.recentTraces(0, tracesMax);
    const snapshots = port.instances();
    const { rows } = detailOf(snapshots.length);
    const frame = dashboardFrame({
      ...{ models: models.cards.map(({ id }) => id), ready: port.snapshot().ready, kvTokenBytes: model?.kvTokenBytes },
      ...{ atMs: Date.now(), nowUs, originUs: performance.timeOrigin * 1000 },
      ...{ snapshots, roles: cluster.roles() },
      ...{ traces, changed: cluster.recentTraces(sinceUs, rows).traces },
      boundsOf: (name) => (name === '' ? sloDefault : sloClasses.get(name)),
      refusals: await metrics.refusals(),
      prefixes: cluster.sharedPrefixes(prefixesMax),
    });
    return c.json(frame, 200, { 'cache-control': 'no-store' });
  });
  app.all('/api/dashboard', (c) => refuseMethod(c, 'GET'));
}

/** `now_ms` of the frame before; undefined: none. @throws ApiError 400 */
function sinceOf(text: string | undefined): number {
  const ms = Number(text ?? 0);
  if (Number.isFinite(ms) && ms >= 0) return ms * 1000;
  throw new ApiError(400, `Cannot read 'since': write now_ms of an earlier frame, got '${text?.slice(0, 64)}'`, {
    code: 'invalid_value',
    param: 'since',
  });
}

/** Scripts and styles come from this server alone, and nothing is evaluated. */
const securityPolicy = [
  ...["default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'"],
  ...["base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"],
].join('; ');

const types: Readonly<Record<string, string>> = {
  html: 'text/html; charset=utf-8',
  css: 'text/css; charset=utf-8',
  mjs: 'text/javascript; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
};

const require = createRequire(import.meta.url);

/** The page over one recording, of which the bytes are `recording`. */
export function recordingApp(webFolder: string, name: string, recording: string): Hono<Env> {
  const app = new Hono<Env>();
  addPage(app, webFolder);
  app.get('/dashboard/runs/:name', (c) => {
    if (c.req.param('name') !== name) return c.notFound();
    return new Response(recording, { headers: { 'content-type': 'application/json', 'cache-control': 'no-store' } });
  });
  return app;
}

/** The files of the page by URL path; any other path is not found. */
function addPage(app: Hono<Env>, folder: string): void {
  const files = new Map([
    ['/dashboard', join(folder, 'dashboard/page.html')],
    ['/dashboard/uPlot.js', require.resolve('uplot/dist/uPlot.iife.min.js')],
    ['/dashboard/uPlot.css', require.resolve('uplot/dist/uPlot.min.css')],
  ]);
  for (const part of ['dashboard', 'drawing'])
    for (const name of readdirSync(join(folder, part)))
      if (!name.endsWith('.html')) files.set(`/dashboard/${part}/${name}`, join(folder, part, name));
  const texts = new Map<string, string>();
  const textOf = (path: string): string => {
    const text = texts.get(path) ?? readFileSync(path, 'utf8');
    texts.set(path, text);
    return text;
  };
  for (const [url, path] of files) {
    const type = types[path.slice(path.lastIndexOf('.') + 1)] ?? 'application/octet-stream';
    const headers = {
      'content-type': type,
      'content-security-policy': securityPolicy,
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
      'cache-control': 'no-cache',
    };
    app.get(url, () => new Response(textOf(path), { headers }));
    app.all(url, (c) => refuseMethod(c, 'GET'));
  }
}
