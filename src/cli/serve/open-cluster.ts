// Opens a member of a cluster: a gateway with text side and conductor, or an instance on a thread of its own.
import { hostname } from 'node:os';
import { modelFingerprint } from '../../engine/fingerprint.ts';
import type { Bus } from '../../runtime/bus/bus.ts';
import { connectNats } from '../../runtime/bus/nats-bus.ts';
import type { NatsServers } from '../../runtime/bus/nats-connection.ts';
import { agreeOn } from '../../runtime/processes/agree.ts';
import { ClusterGateway } from '../../runtime/processes/cluster-gateway.ts';
import { type JoinedInstance, joinCluster } from '../../runtime/processes/join.ts';
import { announceDeparture } from '../../runtime/processes/peer-session.ts';
import { Completion } from '../../runtime/threads/completion.ts';
import { openModel } from '../../weights/open-model.ts';
import type { ModelFiles } from '../../weights/types.ts';
import type { AttentionWorkersSettings } from '../options/attention-worker-settings.ts';
import { joinedLending, servedLending } from '../options/borrow-options.ts';
import { computes, defaultInstance, type InstanceJoinOptions, type ServeOptions } from '../options/options.ts';
import { servedPipeline } from '../options/pipeline-options.ts';
import { admissionSettings } from '../options/slo-options.ts';
import { budgetByDefault, servedSparsity, sparseLayers } from '../options/sparse-options.ts';
import { blockRoot } from './block-root.ts';
import { logRdmaDevice } from './host/rdma-device.ts';
import { tierSettings } from './instance-tiers.ts';
import { clusterManagerSettings } from './live-borrowing.ts';
import { locateModel } from './model/locate-model.ts';
import { contextTokens } from './model/served-model.ts';
import { openTextSide, type TextSide } from './model/text-side.ts';
import { boundsOutputs, budgetRange, contexts, instanceSettings } from './open-serving.ts';

const clusterDefault = 'kvasir';
const requestTimeoutSDefault = 600;

export interface GatewayMember extends TextSide {
  readonly cluster: ClusterGateway;
  /** Resolves with the reason when the process is no longer a member of the cluster. */
  readonly ended: Promise<string>;
  /** Reports that this incarnation of an instance has exited, before its heartbeat times out. */
  reportExit(name: string, incarnation: number): void;
}

/** @throws Error in one line if the server is unreachable, or the cluster has another model */
export function openClusterGateway(
  nats: NatsServers,
  options: ServeOptions,
  { log, traces }: { readonly log: (message: string) => void; readonly traces: boolean },
): Promise<GatewayMember> {
  return withModel(nats, options, log, async (bus, files, { path, name }) => {
    const stopped = new Completion();
    const own = { modelFingerprint: modelFingerprint(files), root: undefined };
    const agreement = await agreeOn(bus, own, { log, onOverruled: (why) => stopped.end(why) });
    const sparsity = servedSparsity(options);
    const pipeline = servedPipeline(options);
    const computing = options.instances?.filter(computes) ?? [];
    const { context, home } = contexts(files, options, computing, servedLending(options), sparsity);
    const kvBudget = budgetRange(sparsity, files, context);
    const text = openTextSide(files, path, context, options.servedModelName ?? name);
    const cluster = new ClusterGateway({
      ...{ bus, agreement, ...processName(undefined) },
      queueMax: options.queue,
      timeoutUs: (options.requestTimeout ?? requestTimeoutSDefault) * 1_000_000,
      admission: admissionSettings(options),
      pipeline: pipeline && { ...pipeline, budgetByDefault: budgetByDefault(sparsity) },
      traces,
      log,
    });
    const close = async (): Promise<void> => {
      cluster.close();
      await Promise.all([bus.close(), text.close()]);
    };
    const reportExit = (name: string, incarnation: number): void => {
      const kinds = ['instance', 'prefill', 'decode', 'lender', 'fetcher', 'stage'] as const;
      for (const kind of kinds) announceDeparture(bus, kind, name, incarnation);
    };
    return {
      ...text,
      model: { ...text.model, homeTokens: home, kvBudget },
      cluster,
      ended: stopped.ended,
      reportExit,
      close,
    };
  });
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
    // With borrowed memory, and with kept tokens, a request may exceed the capacity of this instance.
    const sparse = servedSparsity(options);
    const isOwn = rules === undefined && !boundsOutputs(sparse);
    const context = contextTokens(files, isOwn ? options : { ...options, kvMemory: undefined });
    budgetRange(sparse, files, context);
    const settings = {
      ...instanceSettings(options, defaultInstance, path, context, 1, {
        rechecksAdmission: options.recheck,
        pinMemory: options.pinMemory,
      }),
      tiers: tierSettings(options, 0, 1),
      attentionWorkers,
      sparse,
    };
    const joined = await joinCluster({
      ...{ bus, name, incarnation },
      entry: new URL('./instance-worker.js', import.meta.url),
      settings: rules === undefined ? settings : { ...settings, lending: { lenders: 'others', rules } },
      lending: rules && clusterManagerSettings(rules),
      ...{ role: options.role, roleSwitch: options.roleSwitch, keepsRole: attentionWorkers !== undefined },
      pages: { host: options.pagesHost, port: options.pagesPort, token: options.token, transport: options.transport },
      root: blockRoot(files, options, sparse && sparseLayers(sparse, files.config.layers)),
      vocabSize: files.config.vocabSize,
      log,
    });
    const close = async (): Promise<void> => {
      await joined.close();
      await bus.close();
    };
    return { ...joined, name, incarnation, modelId: files.id, close };
  });
}

/** Closes the bus if `open` fails, and the files when it returns. */
async function withModel<T>(
  nats: NatsServers,
  { model, cluster = clusterDefault }: { readonly model?: string | undefined; readonly cluster?: string | undefined },
  log: (message: string) => void,
  open: (bus: Bus, files: ModelFiles, located: Awaited<ReturnType<typeof locateModel>>) => Promise<T>,
): Promise<T> {
  const located = await locateModel(model);
  const files = openModel(located.path);
  try {
    const bus = await connectNats(nats, cluster, log);
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
function processName(given: string | undefined): { readonly name: string; readonly incarnation: number } {
  const host = hostname()
    .replace(/[^\w-]/g, '-')
    .slice(0, 48);
  return { name: given ?? `${host}-${process.pid}`, incarnation: Date.now() };
}
