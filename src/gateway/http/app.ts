// The HTTP routes: OpenAI endpoints, health and metrics. Every response has a request id, and every error the OpenAI shape.
import { type Context, Hono } from 'hono';
import { cors } from 'hono/cors';
import type { Logger } from 'pino';
import { z } from 'zod';
import type { ClusterView, GatewayPeers, InferencePort, InstancesPort } from '../../core/protocol/ports.ts';
import { addBatchRoutes } from '../batches/batch-routes.ts';
import type { LatencyBounds } from '../dashboard/class-latencies.ts';
import { addDashboardRoutes } from '../dashboard/dashboard-routes.ts';
import { answerForwarded, Forwarding, forwardedCaller } from '../forwarding/forwarding.ts';
import { GatewayIds } from '../forwarding/gateway-ids.ts';
import { type ApiKeys, authorizationOf, requireAdmin } from '../keys/api-keys.ts';
import { anyCaller, type Caller } from '../keys/caller.ts';
import { CallerConnections, CallerUsage, OpenElsewhere } from '../keys/caller-usage.ts';
import { shareUsage, type UsageParts } from '../keys/shared-usage.ts';
import { GatewayMetrics } from '../metrics/metrics.ts';
import { type ModelParts, modelNameOf, OneModel, type ServedModels, unknownModel } from '../models/served-models.ts';
import { Contexts } from '../openai/contexts.ts';
import {
  type Endpoint,
  type EndpointCall,
  type EndpointContext,
  type RunEndpoint,
  throwIfDisconnected,
} from '../openai/endpoint.ts';
import { parseBody, type UnknownFields } from '../openai/fields.ts';
import { contextSchema } from '../openai/schema.ts';
import type { OtlpExporter } from '../tracing/otlp-exporter.ts';
import { describeRequest } from '../tracing/request-trace.ts';
import { exportTraces } from '../tracing/spans.ts';
import { traceOf } from '../tracing/trace-context.ts';
import { BodyBudget, readJson } from './body.ts';
import { countInstances, describeCluster } from './cluster-view.ts';
import type { DataFolder } from './data-folder.ts';
import { endpoints } from './endpoints.ts';
import { ApiError, clientRequestId, errorHeaders, newRequestId, toApiError } from './errors.ts';
import { errorBody, idHeaders } from './protocol-paths.ts';
import { RequestLine } from './request-line.ts';
import { callOf, type Env, type NodeObjects, refuseMethod } from './route-context.ts';
import type { EngineText, ServedModel } from './served-model.ts';
import type { TlsFiles } from './tls-files.ts';

/** A route for other gateways, whose key the answer checks. */
export interface PeerRoute {
  readonly path: string;
  /** Of GET. */
  answer(request: Request): Response;
}

/** Settings that do not depend on the models. */
export interface GatewaySettings {
  /** Of the release. */
  readonly version?: string;
  /** Undefined: traces are not exported. */
  readonly exporter: OtlpExporter | undefined;
  readonly logger: Logger;
  readonly keys: ApiKeys;
  /** Undefined: plain HTTP. */
  readonly tls?: TlsFiles | undefined;
  /** Stores files and batches across restarts; undefined: they are lost when the process exits. */
  readonly data?: DataFolder | undefined;
  /** The other gateways of the cluster; undefined: the gateway is alone. */
  readonly peers?: GatewayPeers | undefined;
  /** Origins that browsers may call from, `*` for any; empty: CORS is off. */
  readonly corsOrigins: readonly string[];
  readonly bodyBytesMax: number;
  /** Connections at once. */
  readonly connectionsMax?: number;
  readonly streamBufferBytesMax: number;
  /** SLO classes by name, each with the default priority of its requests. */
  readonly sloClasses: ReadonlyMap<string, LatencyBounds & { readonly priority: number }>;
  /** Bounds of requests without a class; undefined: none. */
  readonly sloDefault?: LatencyBounds | undefined;
  /** Folder with the files of the dashboard's page; undefined: no page is served. */
  readonly webFolder?: string | undefined;
  /** The body of `/kv_event_sources`; undefined: no KV events are published, and the path is unknown. */
  readonly kvEventSources?: Readonly<Record<string, object>> | undefined;
  /** Undefined: no other gateway asks this one for the blocks of engines. */
  readonly blockListing?: PeerRoute | undefined;
  /** Maximum number of choices of one request: the size of the queue. */
  readonly choicesMax: number;
  /** Undefined: unknown fields of a request are refused. */
  readonly unknownFields?: UnknownFields | undefined;
}

/** A gateway with one model. */
export interface GatewayOptions extends GatewaySettings, ModelParts {}

/** A gateway with several models. */
export interface SharedGatewayOptions extends GatewaySettings {
  readonly models: ServedModels;
  /** State of the instances of all models. */
  readonly port: InstancesPort;
  readonly cluster: ClusterView;
}

export function servedModelsOf(options: GatewayOptions | SharedGatewayOptions): ServedModels {
  return 'models' in options ? options.models : new OneModel(options);
}

/** Routes that show or change more than the caller's own requests. */
const adminRoutes = [
  ['/metrics', 'read metrics'],
  ['/api/cluster', 'read the state of the cluster'],
  ['/api/dashboard', 'read the state of the cluster'],
  ['/api/instances/*', 'change instances'],
] as const;

/** Further connections are closed: each takes memory and a descriptor. */
export const connectionsMaxDefault = 8_192;
/** Bodies of the longest length that are read or handled at once. */
const bodiesAtOnce = 16;

type ServedOptions = GatewayOptions | SharedGatewayOptions;

export function metricsOf(options: ServedOptions, models = servedModelsOf(options)): GatewayMetrics {
  const { port, cluster, version, sloClasses, sloDefault } = options;
  const boundsOf = (name: string): LatencyBounds | undefined => sloClasses.get(name) ?? sloDefault;
  return new GatewayMetrics(port, cluster, () => models.figures(), { version, boundsOf });
}

/**
 * @param stopping aborted when the server stops: batches then stop
 * @param observed the port of a model, as requests submit to it
 */
export function createApp(
  options: ServedOptions,
  metrics = metricsOf(options),
  stopping: AbortSignal = new AbortController().signal,
  observed: (port: InferencePort) => InferencePort = (port) => port,
): Hono<Env> {
  const { logger } = options;
  const models = servedModelsOf(options);
  const { keys } = options;
  const { usage, connections } = usageOf(options);
  const ids = new GatewayIds(options.peers?.key);
  const contexts = new Contexts(ids);
  const forwarding = new Forwarding(options.peers, keys);
  const shared = { ...options, metrics, usage };
  const run = endpointRunner(models, contexts, shared, (parts) => ({
    ...shared,
    ...parts,
    port: observed(parts.port),
  }));
  const app = new Hono<Env>();
  app.use(observe(logger, metrics));
  if (options.exporter !== undefined) {
    exportTraces(options.cluster, options.exporter);
    app.use('/v1/*', async (c, next) => {
      c.set('trace', traceOf(c.req.header('traceparent')));
      await next();
    });
  }
  if (options.corsOrigins.length > 0) app.use(allowOrigins(options.corsOrigins));
  identifyCallers(app, keys, connections);
  for (const [path, what] of adminRoutes) {
    app.use(path, async (c, next) => {
      requireAdmin(c.get('caller'), what);
      await next();
    });
  }
  const bodies = new BodyBudget(bodiesAtOnce * options.bodyBytesMax, options.bodyBytesMax);
  app.post('*', async (c, next) => {
    const release = bodies.reserve(c.req.raw);
    await next().finally(release);
  });
  addInfoRoutes(app, options, models, metrics);
  addClusterRoutes(app, options, models);
  addDashboardRoutes(app, { ...options, models }, metrics);
  addContextRoutes(app, contexts, run, { bodyBytesMax: options.bodyBytesMax, forwarding });
  const storage = options.data && { folder: options.data, owners: keys };
  const batchRun = { run, logger, callerNamed: (tenant: string) => keys.callerNamed(tenant) };
  addBatchRoutes(app, batchRun, { bodyBytesMax: options.bodyBytesMax, stopping, storage, ids, forwarding });
  addEndpoints(app, run, options);
  app.notFound((c) =>
    errorResponse(c, new ApiError(404, `Cannot find ${c.req.method} ${c.req.path}`, { code: 'unknown_url' }), logger),
  );
  app.onError((error, c) => errorResponse(c, error, logger));
  if (options.peers !== undefined) answerForwarded(options.peers, keys, (request, env) => app.fetch(request, env));
  return app;
}

/** Every request to the API has a caller, and its connection counts for that caller. */
function identifyCallers(app: Hono<Env>, keys: ApiKeys, connections: CallerConnections): void {
  for (const path of ['/v1/*', '/api/*', '/metrics', '/tokenize', '/detokenize']) {
    app.use(path, async (c, next) => {
      const caller =
        forwardedCaller(c) ?? keys.callerOf(authorizationOf(c.req.header('authorization'), c.req.header('x-api-key')));
      c.set('caller', caller);
      claimConnection(c.env as NodeObjects | undefined, caller, connections);
      await next();
    });
  }
}

/** @throws ApiError 429 for a connection above the limit of the key, which is closed after the response */
function claimConnection(
  { incoming, outgoing }: NodeObjects = {},
  caller: Caller,
  connections: CallerConnections,
): void {
  if (incoming === undefined) return;
  try {
    connections.use(caller, incoming.socket);
  } catch (error) {
    if (outgoing !== undefined) outgoing.shouldKeepAlive = false;
    throw error;
  }
}

/** With several keys, each may have half of all connections. Other gateways of the cluster count what is used here, and the reverse. */
function usageOf(options: GatewaySettings): Pick<UsageParts, 'usage' | 'connections'> {
  const { keys, choicesMax: queueMax, connectionsMax = connectionsMaxDefault, peers } = options;
  const elsewhere = new OpenElsewhere();
  const each = (): number | undefined => (keys.areSeveral ? Math.ceil(connectionsMax / 2) : undefined);
  const connections = new CallerConnections(each, elsewhere);
  const sharesQueue = (): boolean => keys.areSeveral;
  const usage = new CallerUsage({ nowMs: () => performance.now(), queueMax, sharesQueue, elsewhere });
  if (peers !== undefined) shareUsage(peers, keys, { usage, connections, elsewhere });
  return { usage, connections };
}

function addClusterRoutes(app: Hono<Env>, options: ServedOptions, models: ServedModels): void {
  app.get('/api/cluster', (c) => c.json(describeCluster(models, options.port, options.cluster)));
  app.all('/api/cluster', (c) => refuseMethod(c, 'GET'));
  app.get('/api/requests/:id', (c) =>
    c.json(describeRequest(c.req.param('id'), options.cluster, options.choicesMax, c.get('caller'))),
  );
  app.all('/api/requests/:id', (c) => refuseMethod(c, 'GET'));
  app.post('/api/instances/:number/role', async (c) => {
    const json = await readJson(c.req.raw, options.bodyBytesMax);
    return c.json(switchRole(c.req.param('number'), json, options.cluster));
  });
  app.all('/api/instances/:number/role', (c) => refuseMethod(c, 'POST'));
}

/** Runs endpoints. The context of a model is built once for each of its loads, which no refused request begins. */
function endpointRunner(
  models: ServedModels,
  contexts: Contexts,
  settings: Pick<EndpointContext, 'usage' | 'unknownFields'>,
  contextOf: (parts: ModelParts) => Omit<EndpointContext, 'prefixes'>,
): RunEndpoint {
  const known = new WeakMap<ModelParts, EndpointContext>();
  const build = (parts: ModelParts): EndpointContext => {
    const context = { ...contextOf(parts), prefixes: contexts.keeper(parts.model.id, parts.cluster) };
    known.set(parts, context);
    return context;
  };
  return (endpoint, json, call) => {
    const beginWait = (): (() => void) => {
      parseBody(endpoint.schema, json, settings, endpoint.dialect);
      return call.batch ? () => {} : settings.usage.wait(call.caller);
    };
    const named = modelNameOf(json) ?? (endpoint.hasDefaultModel === true ? models.cards[0]?.id : undefined);
    return models.use(named, { ...call, beginWait }, (parts) => {
      const context = known.get(parts) ?? build(parts);
      // Tokenizing ends with the request. A caller's batch jobs take turns of their own.
      const request = { signal: call.signal, caller: call.batch ? `batch ${call.caller.name}` : call.caller.name };
      const encode = tokenizedOnce(call.tokenized, (text, addSpecial) =>
        context.encode(text, addSpecial, request).catch((error: unknown) => {
          throwIfDisconnected(call.signal);
          throw error;
        }),
      );
      return endpoint.answer(json, { ...context, model: withSignal(context.model, call.signal), encode }, call);
    });
  };
}

/** Keeps what is tokenized for later attempts of the same batch job; without a map each call tokenizes. */
function tokenizedOnce(known: EndpointCall['tokenized'], encode: ModelParts['encode']): ModelParts['encode'] {
  if (known === undefined) return encode;
  return async (text, addSpecial) => {
    const key = `${addSpecial} ${text}`;
    const ids = known.get(key) ?? (await encode(text, addSpecial));
    known.set(key, ids);
    return ids;
  };
}

/** Engines that render chats for a request end with it. */
function withSignal(model: ServedModel, signal: AbortSignal): ServedModel {
  const { engineText } = model;
  if (engineText === undefined) return model;
  const chat: EngineText['chat'] = (asked) =>
    engineText.chat(asked, signal).catch((error: unknown) => {
      throwIfDisconnected(signal);
      throw error;
    });
  return { ...model, engineText: { chat } };
}

function addEndpoints(app: Hono<Env>, run: RunEndpoint, { bodyBytesMax }: GatewaySettings): void {
  for (const [path, endpoint] of Object.entries(endpoints)) {
    app.post(path, async (c) => run(endpoint, await readJson(c.req.raw, bodyBytesMax), callOf(c)));
    app.all(path, (c) => refuseMethod(c, 'POST'));
  }
}

function addContextRoutes(
  app: Hono<Env>,
  contexts: Contexts,
  run: RunEndpoint,
  { bodyBytesMax, forwarding }: Pick<GatewaySettings, 'bodyBytesMax'> & { readonly forwarding: Forwarding },
): void {
  const one = '/v1/contexts/:id';
  const create: Endpoint = {
    schema: contextSchema,
    answer: async (json, context, call) => Response.json(await contexts.create(json, context, call), { status: 201 }),
  };
  app.post('/v1/contexts', async (c) => run(create, await readJson(c.req.raw, bodyBytesMax), callOf(c)));
  app.get('/v1/contexts', async (c) =>
    c.json({ object: 'list', data: await forwarding.listed(c, contexts.list(c.get('caller'))) }),
  );
  app.use('/v1/contexts/:id/*', forwarding.byId);
  app.get(one, (c) => c.json(contexts.get(c.req.param('id'), c.get('caller'))));
  app.post(one, async (c) =>
    c.json(contexts.renew(c.req.param('id'), await readJson(c.req.raw, bodyBytesMax), c.get('caller'))),
  );
  app.delete(one, (c) => c.json(contexts.remove(c.req.param('id'), c.get('caller'))));
  app.all('/v1/contexts', (c) => refuseMethod(c, 'GET, POST'));
  app.all(one, (c) => refuseMethod(c, 'GET, POST, DELETE'));
}

function addInfoRoutes(
  app: Hono<Env>,
  { port, cluster, kvEventSources, blockListing }: ServedOptions,
  models: ServedModels,
  metrics: GatewayMetrics,
): void {
  const cards = (): object[] =>
    models.cards.map(({ id, createdS, contextTokens }, i) => {
      const state = models.figures()[i]?.loads?.state;
      const status = state === undefined ? {} : { status: { value: state } };
      return {
        ...{ id, object: 'model', created: createdS, owned_by: 'kvasir', max_model_len: contextTokens },
        ...status,
      };
    });
  app.get('/health', (c) => c.json({ status: 'ok', ...countInstances(port, cluster) }));
  app.get('/ready', (c) => {
    const { kind: status, ...why } = port.readiness();
    return c.json({ status, ...why }, status === 'ready' ? 200 : 503);
  });
  app.get('/metrics', async () => {
    const { contentType, text } = await metrics.render();
    return new Response(text, { headers: { 'content-type': contentType } });
  });
  app.get('/v1/models', (c) => c.json({ object: 'list', data: cards() }));
  // Model ids may contain slashes, as hub ids do.
  app.get('/v1/models/:id{.+}', (c) => {
    const ids = models.cards.map(({ id }) => id);
    const card = cards()[ids.indexOf(c.req.param('id'))];
    if (card === undefined) throw unknownModel(c.req.param('id'), ids);
    return c.json(card);
  });
  if (kvEventSources !== undefined) {
    app.get('/kv_event_sources', (c) => c.json(kvEventSources));
    app.all('/kv_event_sources', (c) => refuseMethod(c, 'GET'));
  }
  if (blockListing !== undefined) {
    app.get(blockListing.path, (c) => blockListing.answer(c.req.raw));
    app.all(blockListing.path, (c) => refuseMethod(c, 'GET'));
  }
  for (const path of ['/health', '/ready', '/metrics', '/v1/models', '/v1/models/*'])
    app.all(path, (c) => refuseMethod(c, 'GET'));
}

function allowOrigins(origins: readonly string[]) {
  return cors({
    origin: origins.includes('*') ? '*' : [...origins],
    allowMethods: ['GET', 'POST', 'DELETE'],
    exposeHeaders: ['x-request-id', 'retry-after'],
  });
}

/** Assigns a request id, writes one log line when the response has ended, and counts responses. */
function observe(logger: Logger, metrics: GatewayMetrics) {
  return async (c: Context<Env>, next: () => Promise<void>): Promise<void> => {
    const requestId = newRequestId();
    const clientId = clientRequestId(c.req.header('x-request-id'));
    const startMs = performance.now();
    const { path, method } = c.req;
    const line = new RequestLine((fields) => {
      const ms = Math.round(performance.now() - startMs);
      if (path.startsWith('/v1/')) logger.info({ ...fields, ms }, 'request');
      else logger.debug({ ...fields, ms }, 'request');
    });
    c.set('requestId', requestId);
    c.set('responseId', clientId ?? requestId);
    c.set('startMs', startMs);
    c.set('caller', anyCaller);
    c.set('line', line);
    await next();
    const { status, headers } = c.res;
    // `c.header` would create the response, and its stream, anew.
    for (const name of idHeaders(path)) headers.set(name, clientId ?? requestId);
    const isForwarded = forwardedCaller(c) !== undefined;
    // The gateway of the client counts it.
    if (!isForwarded) metrics.response(c.req.routePath, status);
    const { name } = c.get('caller');
    const address = (c.env as NodeObjects | undefined)?.incoming?.socket.remoteAddress;
    line.responded({
      requestId,
      ...(clientId !== undefined && { clientRequestId: clientId }),
      ...(name !== '' && { tenant: name }),
      ...(address !== undefined && { address }),
      ...(isForwarded && { forwarded: true }),
      ...{ method, path, status },
    });
  };
}

function errorResponse(c: Context<Env>, error: unknown, logger: Logger): Response {
  const apiError = toApiError(error);
  const requestId = c.get('requestId');
  // Other statuses are not failures of the server; the request line has them.
  if (apiError.status === 500) logger.error({ requestId, err: error }, 'request failed');
  return new Response(JSON.stringify(errorBody(c.req.path, apiError, c.get('responseId'))), {
    status: apiError.status,
    headers: errorHeaders(apiError, c.get('responseId')),
  });
}

const roleSchema = z.object({ role: z.enum(['mixed', 'prefill', 'decode']) });

/** Changes the role of an instance. @throws ApiError 404 for an unknown instance, 400 for an unknown role, 409 if the instance cannot take the role */
function switchRole(number: string, json: unknown, cluster: ClusterView): object {
  const instance = /^\d{1,4}$/.test(number) ? Number(number) : undefined;
  const { length } = cluster.roles();
  if (instance === undefined || instance >= length)
    throw new ApiError(404, `Cannot find instance '${number.slice(0, 64)}': there are ${length}, numbered from 0`, {
      code: 'instance_not_found',
    });
  const { role } = parseBody(roleSchema, json);
  const why = cluster.switchRole(instance, role);
  if (why !== undefined)
    throw new ApiError(409, `Cannot make instance ${instance} ${role}: ${why}`, {
      code: 'role_conflict',
      param: 'role',
    });
  return { instance, role };
}
