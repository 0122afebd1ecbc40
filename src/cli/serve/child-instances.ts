// Instances as child processes that run `kvasir join`, restarted when they exit, ended with this process.
import { hostname } from 'node:os';
import { fileURLToPath } from 'node:url';
import type { NatsServers } from '../../runtime/bus/nats-connection.ts';
import { RestartedProcess } from '../../runtime/processes/restarted-process.ts';
import type { InstanceDescription } from '../../runtime/threads/thread-protocol.ts';
import { servedAttentionWorkers } from '../options/attention-worker-settings.ts';
import { servedLending } from '../options/borrow-options.ts';
import type { NatsOptions } from '../options/nats-options.ts';
import { computes, type InstanceOptions, type ServeOptions, toFlag } from '../options/options.ts';
import { tierSettings } from './instance-tiers.ts';

const command = fileURLToPath(new URL('../main.js', import.meta.url));
/** Time to leave the cluster after SIGTERM and the drain, before SIGKILL. */
const leaveMs = 5_000;

/** The message of a child to its parent after joining. */
export interface JoinedMessage {
  readonly joined: InstanceDescription;
  readonly incarnation: number;
}

interface ChildObserver {
  readonly log: (line: string) => void;
  /** Called when a joined instance has exited. */
  readonly exited: (name: string, incarnation: number) => void;
}

export class ChildInstances {
  readonly #children: readonly RestartedProcess<JoinedMessage>[];

  /** @param settings (instances): the options of the server, for each */
  constructor(
    nats: NatsServers,
    settings: readonly ServeOptions[],
    instances: readonly InstanceOptions[],
    observer: ChildObserver,
  ) {
    this.#children = instances.map((own, i) => {
      const options = settings[i];
      const name = `${hostname()
        .replace(/[^\w-]/g, '-')
        .slice(0, 40)}-${process.pid}-${i}`;
      const flags = [
        ...(computes(own) ? flagsOf(options, own, instances.filter(computes).length) : storeFlags(options)),
        ...tierFlags(options, own, i, instances.length),
        ...(computes(own) && servedLending(options) ? borrowFlags(options, own) : []),
        ...sparseFlags(options),
        ...natsFlags(options),
      ];
      return new RestartedProcess<JoinedMessage>({
        name: `Instance ${name}`,
        command: () => [command, 'join', '--name', name, ...flags],
        env: { KVASIR_NATS: nats.urls, ...(options.token !== undefined && { KVASIR_TOKEN: options.token }) },
        ready: () => 'has joined',
        exited: ({ incarnation }) => observer.exited(name, incarnation),
        killAfterMs: 1000 * options.drainTimeout + leaveMs,
        log: observer.log,
      });
    });
  }

  /** Resolves when all have joined. @throws Error if one exits before; it has printed the reason */
  joined(): Promise<readonly InstanceDescription[]> {
    return Promise.all(this.#children.map(async ({ ready }) => (await ready).joined));
  }

  /** Lets every instance leave the cluster and exit. */
  async close(): Promise<void> {
    await Promise.all(this.#children.map((child) => child.close()));
  }
}

function flagsOf(options: ServeOptions, own: InstanceOptions, instances: number): readonly string[] {
  const { model, weights, inputs, kvType, context, eviction, cluster, pinMemory, transport } = options;
  const threads = own.threads ?? Math.max(1, Math.floor(options.threads / instances));
  const kvMemory = own.kvMemory ?? options.kvMemory;
  const { logLevel, logFormat, stepMs, watchdog, drainTimeout } = options;
  const shared = {
    model,
    weights,
    inputs,
    kvType,
    context,
    eviction,
    cluster,
    pinMemory,
    watchdog,
    drainTimeout,
    logLevel,
    logFormat,
    transport,
  };
  const given = { ...shared, threads, kvMemory, stepMs, role: own.role };
  const handsOff = options.roleSwitch || options.instances?.some(({ role }) => role === 'decode') === true;
  const workers = own.role === 'prefill' ? undefined : servedAttentionWorkers(options);
  const start = options.warmUp === false ? ['--no-warm-up'] : [];
  const switches = own.role === 'mixed' && handsOff && workers === undefined ? ['--role-switch'] : [];
  return [...asFlags(given), ...start, ...switches, ...(workers === undefined ? [] : dopFlags(options))];
}

/** Each instance has attention workers of its own. */
function dopFlags(options: ServeOptions): readonly string[] {
  const { dop, attentionThreads, staggeredBatches, moveShardsAfter, partition, attentionForm } = options;
  const attentionWorkers = options.attentionWorkers?.toString();
  const given = {
    dop,
    attentionWorkers,
    attentionThreads,
    staggeredBatches,
    moveShardsAfter,
    partition,
    attentionForm,
  };
  return asFlags(given);
}

/** The options that a store has in common with all instances. */
function storeFlags(options: ServeOptions): readonly string[] {
  const { model, weights, inputs, kvType, context, eviction, cluster, logLevel, logFormat, transport } = options;
  const forms = { weights, inputs, kvType };
  return asFlags({ model, ...forms, context, eviction, cluster, logLevel, logFormat, transport, role: 'store' });
}

/** Each instance has a folder of its own, the same in every run. */
function tierFlags(options: ServeOptions, own: InstanceOptions, index: number, instances: number): readonly string[] {
  const { ssd } = tierSettings(options, index, instances, own) ?? {};
  return asFlags({ hostMemory: own.hostMemory ?? options.hostMemory, ssd: ssd?.path, ssdSize: ssd?.bytes });
}

function sparseFlags({ sparse, sparseBudget, sparseFullLayers, sparseWindow, ...options }: ServeOptions) {
  const { sparseObserve, sparsePooling, sparseCache, sparseDecode, sparseTopP } = options;
  const given = { sparse, sparseBudget, sparseFullLayers, sparseWindow, sparseObserve, sparsePooling };
  return asFlags({ ...given, sparseCache, sparseDecode, sparseTopP });
}

/** How a child connects to the same NATS servers. Its environment has the URLs, which may contain a secret. */
function natsFlags({ natsCa, natsCert, natsKey, natsNkey, natsCreds, natsReplicas, insecure }: NatsOptions) {
  const given = asFlags({ natsCa, natsCert, natsKey, natsNkey, natsCreds, natsReplicas });
  return insecure ? [...given, '--insecure'] : given;
}

function borrowFlags(rules: ServeOptions, { hostMemory = rules.hostMemory }: InstanceOptions): readonly string[] {
  const { lendShare, lowWater, remoteAttentionShare, lookAheadMs, leaseMs, settleMs, remoteCacheMs } = rules;
  const { borrowAhead, settle, settleMin, remoteAttention } = rules;
  const lendHost = hostMemory === undefined ? undefined : rules.lendHost;
  const denied = [...(borrowAhead ? [] : ['--no-borrow-ahead']), ...(settle ? [] : ['--no-settle'])];
  return [
    '--borrow',
    ...asFlags({ lendShare, lowWater, remoteAttentionShare, lookAheadMs, leaseMs, settleMs, settleMin }),
    ...asFlags({ remoteCacheMs, lendHost, remoteAttention }),
    ...denied,
  ];
}

function asFlags(given: Readonly<Record<string, string | number | undefined>>): readonly string[] {
  return Object.entries(given).flatMap(([name, value]) =>
    value === undefined ? [] : [`--${toFlag(name)}`, String(value)],
  );
}
