// Runs `kvasir serve` after its options are checked: an endpoint over instances of this process or of a cluster.
import { readFileSync } from 'node:fs';
import type { Logger } from 'pino';
import type { ClusterPort, GatewayPeers, InferencePort } from '../../core/protocol/ports.ts';
import { gatewayKey } from '../../gateway/forwarding/gateway-ids.ts';
import type { GatewaySettings, PeerRoute } from '../../gateway/http/app.ts';
import { DataFolder } from '../../gateway/http/data-folder.ts';
import { isLoopback } from '../../gateway/http/local-origin.ts';
import { type Gateway, listen } from '../../gateway/http/server.ts';
import type { TlsFiles } from '../../gateway/http/tls-files.ts';
import { ApiKeys } from '../../gateway/keys/api-keys.ts';
import { readKeysFile, watchKeysFile } from '../../gateway/keys/keys-file.ts';
import { OtlpExporter } from '../../gateway/tracing/otlp-exporter.ts';
import type { NatsServers } from '../../runtime/bus/nats-connection.ts';
import type { KvEventPublisher } from '../../runtime/fleet/kv-event-publisher.ts';
import type { StepSource } from '../../runtime/threads/conductor-driver.ts';
import { ChatTemplate } from '../../text/template/chat-template.ts';
import { FolderLock } from '../../weights/hub/lock.ts';
import { type AttentionWorkersSettings, servedAttentionWorkers } from '../options/attention-worker-settings.ts';
import { servedLending } from '../options/borrow-options.ts';
import { natsServers } from '../options/nats-options.ts';
import { computes, defaultInstance, type ServeOptions } from '../options/options.ts';
import { servedPipeline } from '../options/pipeline-options.ts';
import { admissionSettings } from '../options/slo-options.ts';
import { servedSparsity } from '../options/sparse-options.ts';
import { packageFile, packageVersion } from '../package-root.ts';
import { counted } from '../terminal/fields.ts';
import { UsageError } from '../usage-error.ts';
import { startedAttentionWorkers } from './attention/child-attention-workers.ts';
import { withChosenDop, withChosenDops } from './attention/choose-attention-workers.ts';
import { ChildInstances } from './child-instances.ts';
import { describeInstances } from './describe-instances.ts';
import { type FirstModel, firstRequest } from './first-request.ts';
import { kvEventSources, openKvEvents } from './fleet/kv-event-options.ts';
import { codeOf, makeFolder } from './host/make-folder.ts';
import { answerMemoryRequests } from './host/memory-probe.ts';
import { logRdmaDevice } from './host/rdma-device.ts';
import { openLog, type ServerLog } from './host/server-log.ts';
import { leftoverTiers } from './leftover-tiers.ts';
import { openSeveralModels, parseModelName } from './model/several-models.ts';
import type { TextSide } from './model/text-side.ts';
import { openServing, type ServingOptions } from './open-serving.ts';
import { openRecording } from './recording/open-recording.ts';
import { exitAfterWrites, killAfterWrites, stopSignal } from './stop-signal.ts';

const streamBufferBytesMax = 2 ** 20;
/** The end of a gateway that has not served. */
const atOnce = { waitMs: 0, timeoutMs: 0 };

/** The log and the data folder, for instances on threads as in processes. */
interface ServerContext extends ServerLog {
  /** In place of the model's own. */
  readonly chatTemplate: ChatTemplate | undefined;
  readonly data: DataFolder | undefined;
  readonly keys: ApiKeys;
  /** Publishes the blocks of the instances; undefined: they are not published. */
  readonly kvEvents: KvEventPublisher | undefined;
}

/** Serves until SIGTERM or SIGINT. @throws Error in one line if it cannot */
export async function serveModel(options: ServeOptions): Promise<void> {
  const log = openLog(options);
  const chatTemplate = options.chatTemplate === undefined ? undefined : readTemplate(options.chatTemplate);
  const left = options.ssd && leftoverTiers(options.ssd, options.instances?.length ?? 1);
  if (left) log.logger.warn(left);
  const { keys, close } = openKeys(options, log.logger);
  warnWithoutKeys(options, keys, log.logger);
  const data = options.data === undefined ? undefined : await openData(options.data, log.log);
  const kvEvents = await openKvEvents(options);
  try {
    const context = { ...log, chatTemplate, data: data?.folder, keys, kvEvents };
    const nats = natsServers(options);
    if (options.models !== undefined) await serveModels(options.models, options, context);
    else if (options.fleet !== undefined) await serveFleet(options.fleet, options, context);
    else if (nats === undefined) await serveThreads(options, context);
    else await serveCluster(nats, options, context);
  } finally {
    close();
    kvEvents?.close();
    await data?.release();
  }
}

/** @throws UsageError if the file is no template */
function readTemplate(path: string): ChatTemplate {
  const refused = (why: string): UsageError => new UsageError(`Cannot use --chat-template ${path}: ${why}`);
  let source: string;
  try {
    source = readFileSync(path, 'utf8');
  } catch (error) {
    throw refused(`the file cannot be read (${codeOf(error)})`);
  }
  const template = new ChatTemplate(source);
  if (template.problem !== undefined) throw refused(template.problem);
  return template;
}

/** @throws UsageError if the keys file is invalid */
function openKeys(
  { apiKey, adminKey, apiKeys: path }: ServeOptions,
  logger: Logger,
): { keys: ApiKeys; close: () => void } {
  const plain = { users: apiKey, admins: adminKey };
  if (path === undefined) return { keys: new ApiKeys(plain), close: () => {} };
  let keys: ApiKeys | undefined;
  const close = watchKeysFile(
    path,
    (entries) => {
      keys?.replaceFile(entries);
      logger.info({ file: path, keys: entries.length }, 'reread the API keys');
    },
    (message) => logger.error(`${message}; the earlier keys stay valid`),
  );
  try {
    keys = new ApiKeys(plain, readKeysFile(path));
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error));
  }
  return { keys, close };
}

function warnWithoutKeys({ host }: ServeOptions, keys: ApiKeys, logger: Logger): void {
  if (keys.areRequired || isLoopback(host)) return;
  logger.warn(`Listening on ${host} without API keys: every host that reaches it may use the model; see --api-key`);
}

/** Serves a model that external engines compute. */
async function serveFleet(path: string, options: ServeOptions, context: ServerContext): Promise<void> {
  // The modules of fleets are loaded only for them.
  const { openFleet } = await import('./fleet/open-fleet.ts');
  const fleet = await openFleet(path, options, {
    ...{ kvEvents: context.kvEvents?.blocks, traces: recordsSteps(options), log: context.log },
  });
  try {
    if (options.warmUp ?? true) fleet.warmUp();
    const { model, cluster } = fleet;
    const gateway = await openGateway({ ...fleet, blockListing: cluster.blockListing }, options, context);
    const instances = counted(cluster.serving, 'instance');
    console.log(`Model ${model.id}: context ${model.contextTokens} tokens, served by ${instances}`);
    announce(model, gateway, options);
    await runUntilStopped(gateway, new Promise(() => {}), options, context);
  } finally {
    await fleet.close();
    exitAfterWrites();
  }
}

async function serveThreads(options: ServeOptions, context: ServerContext): Promise<void> {
  logRdmaDevice(options.transport, context.log);
  const instances = options.instances ?? [defaultInstance];
  const own = instances.find((each) => computes(each) && each.role !== 'prefill') ?? defaultInstance;
  const workers = servedAttentionWorkers(await withChosenDop(options, own, context.log));
  if (workers === undefined) return serveInstances(options, context, undefined);
  const { settings, close } = await startedAttentionWorkers(options, workers, context.log);
  try {
    await serveInstances(options, context, settings);
  } finally {
    await close();
  }
}

async function serveInstances(
  options: ServeOptions,
  context: ServerContext,
  attentionWorkers: AttentionWorkersSettings | undefined,
): Promise<void> {
  const { name, model } = parseModelName(options.model);
  const serving = await openServing(
    { ...options, model },
    {
      ...servingOptions(options, context, attentionWorkers),
      ...(name !== undefined && { servedModelName: name }),
    },
  );
  try {
    if (options.warmUp ?? true) serving.warmUp();
    const gateway = await openGateway(serving, options, context);
    try {
      answerMemoryRequests(options.instances?.length ?? 1);
      console.log(describeInstances(serving.model.id, await serving.cluster.ready()));
      for (const note of serving.notes) console.log(note);
    } catch (error) {
      await gateway.abandon();
      throw error;
    }
    announce(serving.model, gateway, options);
    const ended = serving.cluster.ended.then(() => 'no instance is left; the lines above have the reasons');
    await runUntilStopped(gateway, ended, options, context);
  } finally {
    await serving.close();
    if (serving.cluster.hasHungThreads) killAfterWrites();
  }
}

function servingOptions(
  options: ServeOptions,
  { log, kvEvents }: ServerContext,
  attentionWorkers: AttentionWorkersSettings | undefined,
): ServingOptions {
  return {
    ...options,
    pipeline: servedPipeline(options),
    admission: admissionSettings(options),
    traces: recordsSteps(options),
    lending: servedLending(options),
    attentionWorkers,
    sparsity: servedSparsity(options),
    warmsGrammars: options.warmUp ?? true,
    kvEvents: kvEvents?.blocks,
    log,
  };
}

/** Serves several models, each over instances of its own that start at its first request. */
async function serveModels(models: readonly string[], options: ServeOptions, context: ServerContext): Promise<void> {
  const several = await openSeveralModels(models, options, servingOptions(options, context, undefined));
  try {
    const gateway = await listen({ ...gatewaySettings(options, context), ...several }, options.host, options.port);
    for (const line of several.lines) console.log(line);
    announce(several.first, gateway, options);
    await runUntilStopped(gateway, new Promise(() => {}), options, context);
  } finally {
    await several.close();
  }
}

/** Serves over instances that join by themselves, or over child processes. */
async function serveCluster(nats: NatsServers, options: ServeOptions, context: ServerContext): Promise<void> {
  // The modules of NATS are loaded only for clusters.
  const { openClusterGateway } = await import('./open-cluster.ts');
  const member = await openClusterGateway(nats, options, {
    log: context.log,
    kvEvents: context.kvEvents?.blocks,
    traces: recordsSteps(options),
    key: await gatewayKey(context.data),
  });
  try {
    const gateway = await openGateway(member, options, context);
    const { instances } = options;
    const settings = instances && (await withChosenDops(options, instances, context.log));
    const children =
      instances && new ChildInstances(nats, settings ?? [], instances, { log: context.log, exited: member.reportExit });
    try {
      const joined = children === undefined ? undefined : await children.joined();
      console.log(
        joined === undefined
          ? `Model ${member.model.id}: context ${member.model.contextTokens} tokens, served by instances that join`
          : describeInstances(member.model.id, joined),
      );
    } catch (error) {
      await gateway.abandon();
      await children?.close();
      throw error;
    }
    try {
      announce(member.model, gateway, options);
      await runUntilStopped(gateway, member.ended, options, context);
    } finally {
      await children?.close();
    }
  } finally {
    await member.close();
    exitAfterWrites();
  }
}

interface RecordedGateway extends Gateway {
  /** The server has not started: ends the gateway at once, and removes its recording. */
  abandon(): Promise<void>;
}

/** The recording of its requests ends with its drain. @throws Error if the gateway cannot listen on host and port */
async function openGateway(
  {
    model,
    cluster,
    peers,
    blockListing,
    encode,
    grammars,
  }: TextSide & {
    readonly cluster: InferencePort & ClusterPort & StepSource;
    readonly peers?: GatewayPeers;
    readonly blockListing?: PeerRoute | undefined;
  },
  options: ServeOptions,
  context: ServerContext,
): Promise<RecordedGateway> {
  const { chatTemplate, log } = context;
  const { port, close, discard } = await openRecording(options, { model, cluster }, log);
  const own = chatTemplate === undefined ? model : { ...model, chatTemplate, toolTemplate: undefined };
  const parts = { model: own, port, cluster, encode, grammars };
  try {
    const gateway = await listen(
      { ...gatewaySettings(options, context), peers, blockListing, ...parts },
      options.host,
      options.port,
    );
    const drain: Gateway['drain'] = async (times) => {
      await gateway.drain(times);
      await close();
    };
    const abandon = async (): Promise<void> => {
      await gateway.drain(atOnce);
      await discard();
    };
    return { ...gateway, drain, abandon };
  } catch (error) {
    await discard();
    throw error;
  }
}

function gatewaySettings(options: ServeOptions, { logger, data, keys, kvEvents }: ServerContext): GatewaySettings {
  return {
    version: packageVersion(),
    logger,
    exporter: createExporter(options, logger),
    keys,
    tls: tlsOf(options),
    data,
    corsOrigins: options.corsOrigin,
    bodyBytesMax: options.bodyLimit,
    streamBufferBytesMax,
    choicesMax: options.queue,
    unknownFields: options.unknownFields,
    sloClasses: new Map(Object.entries(options.sloClasses ?? {})),
    sloDefault: { ...(options.ttftSlo && { ttft: options.ttftSlo }), ...(options.tbtSlo && { tbt: options.tbtSlo }) },
    webFolder: packageFile('web'),
    kvEventSources: kvEventSources(kvEvents),
  };
}

/** Traces and recordings contain steps. */
function recordsSteps(options: ServeOptions): boolean {
  return otlpEndpoint(options) !== undefined || options.record !== undefined;
}

function otlpEndpoint(options: ServeOptions): string | undefined {
  return options.otlpEndpoint ?? (process.env.OTEL_EXPORTER_OTLP_ENDPOINT || undefined);
}

/** @throws UsageError for invalid headers */
function createExporter(options: ServeOptions, logger: Logger): OtlpExporter | undefined {
  const endpoint = otlpEndpoint(options);
  if (endpoint === undefined) return undefined;
  const pairs = (process.env.OTEL_EXPORTER_OTLP_HEADERS ?? '').split(',').filter((pair) => pair.trim() !== '');
  const headers = Object.fromEntries(
    pairs.map((pair) => {
      const at = pair.indexOf('=');
      if (at < 1) throw new UsageError('Cannot use OTEL_EXPORTER_OTLP_HEADERS: write name=value,name=value');
      return [pair.slice(0, at).trim(), decodeURIComponent(pair.slice(at + 1).trim())];
    }),
  );
  return new OtlpExporter({ endpoint, headers, logger });
}

function tlsOf({ tlsCert: cert, tlsKey: key }: ServeOptions): TlsFiles | undefined {
  return cert === undefined || key === undefined ? undefined : { cert, key };
}

function announce(model: FirstModel, gateway: Gateway, options: ServeOptions): void {
  const scheme = tlsOf(options) === undefined ? 'http' : 'https';
  const url = `${scheme}://${gateway.host.includes(':') ? `[${gateway.host}]` : gateway.host}:${gateway.port}`;
  console.log(`Serving on ${url}`);
  const isOpen = options.apiKey.length + options.adminKey.length === 0 && options.apiKeys === undefined;
  const reached = url.replace('//0.0.0.0:', '//127.0.0.1:').replace('//[::]:', '//[::1]:');
  console.log(`Try:\n${firstRequest(model, reached, !isOpen)}`);
}

/** Serves until a stop signal, then drains. @throws Error when the server can no longer serve */
async function runUntilStopped(
  gateway: Gateway,
  ended: Promise<string>,
  { drainWait, drainTimeout }: ServeOptions,
  { log }: ServerLog,
): Promise<void> {
  const timeoutMs = 1000 * drainTimeout;
  const end = await Promise.race([stopSignal(), ended]);
  if (typeof end === 'string') {
    await gateway.drain({ waitMs: 0, timeoutMs });
    throw new Error(`Cannot continue serving: ${end}`);
  }
  // Only a supervisor stops the server behind a load balancer.
  const waitMs = end.stop === 'SIGTERM' ? 1000 * drainWait : 0;
  const first = waitMs > 0 ? `/ready is 503 for ${drainWait} s, then ` : '';
  log(`Draining: ${first}new requests are refused, and running ones finish within ${drainTimeout} s`);
  await gateway.drain({ waitMs, timeoutMs });
}

/** The data folder, locked for this process. */
interface OpenData {
  readonly folder: DataFolder;
  release(): Promise<void>;
}

/** @throws UsageError if it cannot be created or written, Error in one line if another process uses it */
async function openData(path: string, log: (message: string) => void): Promise<OpenData> {
  makeFolder(path, 'data');
  const folder = new DataFolder(path, log);
  const lock = await FolderLock.tryAcquire(path).catch((error: unknown) => {
    throw new UsageError(`Cannot keep data at ${path}: it cannot be written: ${codeOf(error)}`);
  });
  if (typeof lock === 'string') throw new Error(`Cannot keep data at ${path}: ${lock} uses it`);
  const release = async (): Promise<void> => {
    await folder.close();
    await lock.release();
  };
  return { folder, release };
}
