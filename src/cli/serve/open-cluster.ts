// Opens a member of a cluster: a gateway with text side and conductor, or an instance on a thread of its own.
import { hostname } from 'node:os';
import type { PublishedBlocks } from '../../core/fleet/published-blocks.ts';
import type { GatewayPeers } from '../../core/protocol/ports.ts';
import { modelFingerprint } from '../../engine/fingerprint.ts';
import { chooseInputs, inputForms, kvTypeOf, matrixTypes } from '../../engine/forms.ts';
import type { InputForm } from '../../graph/program.ts';
import { AuthenticatedBus } from '../../runtime/bus/authenticated-bus.ts';
import type { Bus } from '../../runtime/bus/bus.ts';
import { connectNats } from '../../runtime/bus/nats-bus.ts';
import { addressTowards, isLoopbackAddress, type NatsServers } from '../../runtime/bus/nats-connection.ts';
import { agreeOn, tokenDigest } from '../../runtime/processes/agree.ts';
import { ClusterGateway } from '../../runtime/processes/cluster-gateway.ts';
import { GatewayLinks } from '../../runtime/processes/gateway-links.ts';
import { HeartbeatThread } from '../../runtime/processes/heartbeat-thread.ts';
import { type JoinedInstance, joinCluster } from '../../runtime/processes/join.ts';
import { announceDeparture, heartbeatMs } from '../../runtime/processes/peer-session.ts';
import { Completion } from '../../runtime/threads/completion.ts';
import type { BlockRoot } from '../../runtime/threads/thread-protocol.ts';
import { openModel } from '../../weights/open-model.ts';
import type { ModelFiles } from '../../weights/types.ts';
import type { AttentionWorkersSettings } from '../options/attention-worker-settings.ts';
import { joinedLending, servedLending } from '../options/borrow-options.ts';
import { computes, defaultInstance, type InstanceJoinOptions, type ServeOptions } from '../options/options.ts';
import { servedPipeline } from '../options/pipeline-options.ts';
import { admissionSettings } from '../options/slo-options.ts';
import { budgetByDefault, servedSparsity, sparseLayers } from '../options/sparse-options.ts';
import { machineIsa } from './backend.ts';
import { keepBlockKey, storedBlockKey } from './block-key.ts';
import { blockRoot } from './block-root.ts';
import { clusterToken } from './host/cluster-token.ts';
import type { HeartbeatSettings } from './host/heartbeat-worker.ts';
import { logRdmaDevice } from './host/rdma-device.ts';
import { tierSettings } from './instance-tiers.ts';
import { managerSettings } from './live-borrowing.ts';
import { locateModel } from './model/locate-model.ts';
import { contextTokens } from './model/served-model.ts';
import { openTextSide, type TextSide } from './model/text-side.ts';
import { boundsOutputs, budgetRange, contexts, instanceSettings, sizesOf } from './open-serving.ts';
import type { InstanceSettings } from './worker-settings.ts';

const clusterDefault = 'kvasir';
const requestTimeoutSDefault = 600;

export interface GatewayMember extends TextSide {
  readonly cluster: ClusterGateway;
  /** The other gateways. */
  readonly peers: GatewayPeers;
  /** Resolves with the reason when the process is no longer a member of the cluster. */
  readonly ended: Promise<string>;
  /** Reports that this incarnation of an instance has exited, before its heartbeat times out. */
  reportExit(name: string, incarnation: number): void;
}

export interface ClusterGatewaySettings {
  readonly log: (message: string) => void;
  readonly traces: boolean;
  readonly key: string;
  /** Receives the blocks of the instances, to publish them; undefined: none are published. */
  readonly kvEvents?: PublishedBlocks | undefined;
}

/** @throws Error in one line if the server is unreachable, or the cluster has another model */
export function openClusterGateway(
  nats: NatsServers,
  options: ServeOptions,
  { log, traces, key, kvEvents }: ClusterGatewaySettings,
): Promise<GatewayMember> {
  return withModel(nats, options, log, async (bus, files, { path, name }) => {
    const stopped = new Completion();
    const tokenMark = tokenDigest(clusterToken(options.token));
    const hashKey = childKey(options);
    const own = { modelFingerprint: modelFingerprint(files), root: undefined, tokenMark, hashKey };
    const agreement = await agreeOn(bus, own, { log, onOverruled: (why) => stopped.end(why) });
    const sparsity = servedSparsity(options);
    const pipeline = servedPipeline(options);
    const computing = options.instances?.filter(computes) ?? [];
    const { context, home } = contexts(files, options, computing, servedLending(options), sparsity);
    const kvBudget = budgetRange(sparsity, files, context);
    const text = openTextSide(files, path, context, options.servedModelName ?? name);
    if (options.warmUp ?? true) text.warmUp();
    const member = { bus, heartbeats: heartbeatThread(nats, options, log), ...processName(undefined), log };
    const cluster = new ClusterGateway({
      ...member,
      agreement,
      queueMax: options.queue,
      copiesHotPrefixes: options.copyHotPrefixes,
      timeoutUs: (options.requestTimeout ?? requestTimeoutSDefault) * 1_000_000,
      admission: admissionSettings(options),
      stepUs: options.stepMs && 1000 * options.stepMs,
      pipeline: pipeline && { ...pipeline, budgetByDefault: budgetByDefault(sparsity) },
      traces,
      kvEvents,
    });
    const peers = new GatewayLinks(member, key);
    const close = async (): Promise<void> => {
      peers.close();
      cluster.close();
      await Promise.all([bus.close(), text.close()]);
    };
    const reportExit = (name: string, incarnation: number): void => {
      const kinds = ['instance', 'prefill', 'decode', 'lender', 'fetcher', 'stage'] as const;
      for (const kind of kinds) announceDeparture(bus, kind, name, incarnation);
    };
    return {
      ...text,
      model: { ...text.model, homeTokens: home, kvBudget, ...sizesOf(files, options) },
      ...{ cluster, peers },
      ended: stopped.ended,
      reportExit,
      close,
    };
  });
}

/** The hash key of blocks that instances of this process have on SSD, if any. */
function childKey({ instances = [], ...options }: ServeOptions): readonly number[] | undefined {
  for (const [i, own] of instances.entries()) {
    const folder = tierSettings(options, i, instances.length, own)?.ssd?.path;
    const key = folder === undefined ? undefined : storedBlockKey(folder);
    if (key !== undefined) return key;
  }
  return undefined;
}

/** HTTP may stall the event loop for seconds: a large body, or a slow disk. */
function heartbeatThread(
  nats: NatsServers,
  { cluster = clusterDefault, token }: Pick<ServeOptions, 'cluster' | 'token'>,
  log: (message: string) => void,
): HeartbeatThread {
  const entry = new URL('./host/heartbeat-worker.js', import.meta.url);
  const settings: HeartbeatSettings = { nats, cluster, token: clusterToken(token) };
  return new HeartbeatThread({ entry, settings, intervalMs: heartbeatMs, log });
}

export interface InstanceMember extends JoinedInstance {
  readonly name: string;
  readonly incarnation: number;
  readonly modelId: string;
}

/** The instance serves when this resolves. @throws Error in one line if it cannot join */
export function openClusterInstance(
  nats: NatsServers,
  options: InstanceJoinOptions,
  attentionWorkers: AttentionWorkersSettings | undefined,
  log: (message: string) => void,
): Promise<InstanceMember> {
  const rules = joinedLending(options);
  return withModel(nats, options, log, async (bus, files, { path }) => {
    const { name, incarnation } = processName(options.name);
    logRdmaDevice(options.transport, log);
    const chosen = chooseInputs(options.inputs, machineIsa(), matrixTypes(files, options.weights));
    const sparse = servedSparsity(options);
    const settingsWith = (inputs: InputForm) =>
      joinedSettings(files, path, { ...options, inputs }, { attentionWorkers, sparse });
    const settings = settingsWith(chosen.form);
    const agreedSettings = ({ inputForm }: BlockRoot): InstanceSettings =>
      inputForm === chosen.form
        ? { ...settings, inputsReason: chosen.reason }
        : { ...settingsWith(knownForm(inputForm)), inputsReason: 'the form of the cluster' };
    const root = blockRoot(
      files,
      { ...options, inputs: chosen.form },
      sparse && sparseLayers(sparse, files.config.layers),
    );
    // The type of keys and values is the one that this instance computes with: it may differ from that of the cluster.
    const rootIn = (inputForm: string): BlockRoot => {
      return { ...root, inputForm, kvType: kvTypeOf({ ...options, inputs: knownForm(inputForm) }) };
    };
    const joined = await joinCluster({
      ...{ bus, name, incarnation },
      entry: new URL('./instance-worker.js', import.meta.url),
      settings: agreedSettings,
      lending: rules && managerSettings(rules),
      ...{ role: options.role, roleSwitch: options.roleSwitch, keepsRole: attentionWorkers !== undefined },
      pages: {
        host: await pagesHost(options, nats, log),
        port: options.pagesPort,
        token: clusterToken(options.token),
        transport: options.transport,
      },
      hashKey: options.ssd === undefined ? undefined : storedBlockKey(options.ssd),
      ...{ root, rootIn: options.inputs === 'auto' ? rootIn : undefined },
      vocabSize: files.config.vocabSize,
      watchdogUs: options.watchdog * 1e6,
      log,
    });
    if (options.ssd !== undefined) keepBlockKey(options.ssd, joined.hashKey);
    const close = async (): Promise<void> => {
      await joined.close();
      await bus.close();
    };
    return { ...joined, name, incarnation, modelId: files.id, close };
  });
}

/** Settings of an instance that joins, in these forms. @throws UsageError */
function joinedSettings(
  files: ModelFiles,
  path: string,
  options: InstanceJoinOptions,
  own: Pick<InstanceSettings, 'attentionWorkers' | 'sparse'>,
): InstanceSettings {
  const rules = joinedLending(options);
  // With borrowed memory, and with kept tokens, a request may exceed the capacity of this instance.
  const isOwn = rules === undefined && !boundsOutputs(own.sparse);
  const context = contextTokens(files, isOwn ? options : { ...options, kvMemory: undefined });
  budgetRange(own.sparse, files, context);
  const { pinMemory, stepMs } = options;
  return {
    ...instanceSettings(options, defaultInstance, path, context, 1, { pinMemory, stepMs }),
    tiers: tierSettings(options, 0, 1),
    warmsGrammars: options.warmUp ?? true,
    ...own,
    ...(rules !== undefined && { lending: { lenders: 'others', rules } }),
  };
}

/** @throws Error if the cluster computes in a form that this release does not have */
function knownForm(name: string): InputForm {
  const form = inputForms.find((known) => known === name);
  if (form === undefined) throw new Error(`Cannot join the cluster: it has inputs ${name}, which are unknown here`);
  return form;
}

/** The address at which other instances reach this one. @throws Error in one line */
export async function pagesHost(
  { pagesHost: given }: Pick<InstanceJoinOptions, 'pagesHost'>,
  { urls }: NatsServers,
  log: (message: string) => void,
): Promise<string> {
  const towards = await addressTowards(urls).catch((error: unknown) => {
    if (given === undefined) throw error;
    return given;
  });
  if (given === undefined) return towards;
  const isHidden = isLoopbackAddress(given) && !isLoopbackAddress(towards);
  if (isHidden) log(`--pages-host ${given}: instances on other hosts cannot reach it; ${towards} is that towards NATS`);
  return given;
}

/** Closes the bus if `open` fails, and the files when it returns. */
export async function withModel<T>(
  nats: NatsServers,
  {
    model,
    cluster = clusterDefault,
    token,
  }: {
    readonly model?: string | undefined;
    readonly cluster?: string | undefined;
    readonly token?: string | undefined;
  },
  log: (message: string) => void,
  open: (bus: Bus, files: ModelFiles, located: Awaited<ReturnType<typeof locateModel>>) => Promise<T>,
): Promise<T> {
  const located = await locateModel(model);
  const files = openModel(located.path);
  try {
    const secret = { token: clusterToken(token), cluster, log };
    const bus = new AuthenticatedBus(await connectNats(nats, cluster, log), secret);
    try {
      return await open(bus, files, located);
    } catch (error) {
      await bus.close();
      throw error;
    }
  } finally {
    files.close();
  }
}

/** Of two incarnations with one name, the later one has the higher number. */
export function processName(given: string | undefined): { readonly name: string; readonly incarnation: number } {
  const host = hostname()
    .replace(/[^\w-]/g, '-')
    .slice(0, 48);
  return { name: given ?? `${host}-${process.pid}`, incarnation: Date.now() };
}
