// `kvasir join`: adds an instance on this or another machine to a cluster, until it is stopped.
import { Command, Option } from 'commander';
import type { NatsServers } from '../../runtime/bus/nats-connection.ts';
import { engineRoles } from '../../runtime/fleet/engine-dialect.ts';
import { addDopFlags } from '../options/attention-worker-flags.ts';
import {
  type AttentionWorkerOptions,
  attentionWorkerOptions,
  servedAttentionWorkers,
} from '../options/attention-worker-settings.ts';
import { addLiveBorrowFlags, withoutDefaults } from '../options/borrow-options.ts';
import { refuseIneffective, refuseStoreOptions } from '../options/ineffective-options.ts';
import { addNatsFlags, natsOptionNames, natsServers } from '../options/nats-options.ts';
import {
  addLogFlags,
  addModelFlags,
  addSchedulerFlags,
  addWatchdogFlag,
  defaultInstance,
  givenOptions,
  type InstanceJoinOptions,
  instanceRoles,
  type JoinOptions,
  joinOptionsSchema,
  processTransports,
  readOptions,
  toFlag,
} from '../options/options.ts';
import { addSparseFlags, servedSparsity } from '../options/sparse-options.ts';
import { packageVersion } from '../package-root.ts';
import type { JoinedMessage } from '../serve/child-instances.ts';
import { describeInstances } from '../serve/describe-instances.ts';
import { boundHeapGrowth } from '../serve/host/heap-growth.ts';
import { makeFolder } from '../serve/host/make-folder.ts';
import type { ProbeServer } from '../serve/host/probe-server.ts';
import { refuseTooMuchMemory } from '../serve/memory-limits.ts';
import { exitAfterWrites, killAfterWrites, stopSignal } from '../serve/stop-signal.ts';
import { addHelpAll, groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';

export function joinCommand(): Command {
  const command = new Command('join');
  addDopFlags(addNatsFlags(addSparseFlags(addSchedulerFlags(addModelFlags(command)))))
    .addOption(
      new Option('--role <role>', 'Compute in this role; a store only keeps cached blocks (default: mixed)').choices([
        ...instanceRoles,
        'attention',
      ]),
    )
    .option('--engine <url>', 'Join with the vLLM or SGLang engine at this address in place of an own instance')
    .addOption(
      new Option('--engine-key <key>', 'Present this key to the engine (default: none)').env('KVASIR_ENGINE_KEY'),
    )
    .option('--shard <i/n>', 'Hold this shard of the KV heads, with --role attention: 1/2 (default: none)')
    .option('--name <name>', 'Join under this name, unique in the cluster (default: host name and process id)')
    .addOption(
      new Option(
        '--token <secret>',
        'Share this secret with all processes of the cluster (default: drawn once on each host)',
      ).env('KVASIR_TOKEN'),
    );
  addPagesFlags(command)
    .optionsGroup(groups.scheduling)
    .option('--role-switch', 'Allow gateways to change the role of this mixed instance (default: off)')
    .optionsGroup(groups.tiers)
    .option('--host-memory <size>', 'Cache blocks in this much host memory (default: none)')
    .option('--ssd <folder>', 'Cache blocks on SSD in this folder, also across restarts (default: none)')
    .option('--ssd-size <size>', 'Allocate this much SSD at start (default: 10g)');
  addLogFlags(
    addLiveBorrowFlags(
      addWatchdogFlag(command).option(
        '--drain-timeout <seconds>',
        'When stopping, let running requests finish for this time (default: 30)',
      ),
    ),
  );
  return addHelpAll(
    command,
    groups.sparse,
    groups.scheduling,
    groups.lending,
    groups.tiers,
    groups.observability,
  ).action(async (flags: Record<string, unknown>) => {
    const given = withoutDefaults(flags);
    const options = readOptions(joinOptionsSchema, given);
    refuseIneffective(givenOptions(given), {
      borrow: options.borrow,
      admission: 'none',
      roleSwitch: options.roleSwitch,
    });
    const { role, engine } = options;
    boundHeapGrowth();
    if (engine !== undefined) return joinEngine({ ...options, engine }, givenOptions(given));
    if (options.engineKey !== undefined) throw new UsageError('Cannot use --engine-key: it needs --engine');
    if (role === 'attention') return runAttentionWorker(attentionWorkerOptions(options, givenOptions(given)));
    if (options.shard !== undefined) throw new UsageError('Cannot use --shard: it needs --role attention');
    await serveInstance(checkedNats({ ...options, role }, givenOptions(given)), { ...options, role });
  });
}

/** Options that have an effect with `--engine`, besides those of NATS. */
const engineOptionNames: ReadonlySet<string> = new Set([
  ...[
    'engine',
    'engineKey',
    'role',
    'pagesHost',
    'model',
    'nats',
    'insecure',
    'name',
    'token',
    'drainTimeout',
    'logLevel',
    'logFormat',
  ],
  ...natsOptionNames,
]);

/** Serves until SIGTERM or SIGINT. @throws UsageError for options without effect */
async function joinEngine(
  options: JoinOptions & { readonly engine: string },
  given: Record<string, unknown>,
): Promise<void> {
  const isWithout = (name: string): boolean => given[name] === undefined || given[name] === false;
  const wrong = Object.keys(given).find((name) => !engineOptionNames.has(name) && !isWithout(name));
  if (wrong !== undefined) throw new UsageError(`Cannot use --${toFlag(wrong)} with --engine: the engine computes`);
  const { role } = options;
  const engineRole = given.role === undefined ? undefined : engineRoles.find((each) => each === role);
  if (given.role !== undefined && engineRole === undefined)
    throw new UsageError(`Cannot use --role ${role} with --engine: an engine is one of ${engineRoles.join(', ')}`);
  const nats = natsServers(options);
  if (nats === undefined) throw new UsageError('Cannot join a cluster: --nats nats://HOST:PORT is missing');
  const { serveEngine } = await import('../serve/fleet/join-engine.ts');
  await serveEngine(nats, { ...options, engineRole });
}

/** How other processes reach the KV pages. */
function addPagesFlags(command: Command): Command {
  return command
    .optionsGroup(groups.network)
    .option(
      '--pages-host <address>',
      'Announce this address for KV pages to other instances (default: the one towards NATS)',
    )
    .option('--probe-port <n>', 'Serve /health, /ready and /metrics of this instance on this port (default: none)')
    .option('--probe-host <address>', 'Listen for probes on this address (default: 127.0.0.1)')
    .option('--pages-port <n>', 'Listen for KV pages on this port; 0 selects a free one (default: 0)')
    .addOption(
      new Option('--transport <way>', 'Move KV pages to and from other processes this way (default: auto)').choices(
        processTransports,
      ),
    );
}

/** The NATS servers of an instance with these options. @throws UsageError if they contradict each other */
function checkedNats(options: InstanceJoinOptions, given: Record<string, unknown>): NatsServers {
  const { role, borrow, pagesPort, ssd } = options;
  const nats = natsServers(options);
  if (role === 'store') refuseStoreOptions(given, options);
  if (nats === undefined) throw new UsageError('Cannot join a cluster: --nats nats://HOST:PORT is missing');
  if (borrow && pagesPort > 65_533)
    throw new UsageError(`Cannot use --pages-port ${pagesPort}: --borrow needs the next two ports as well`);
  servedAttentionWorkers(options);
  servedSparsity(options);
  refuseTooMuchMemory(options, [{ role }]);
  if (ssd !== undefined) makeFolder(ssd, 'blocks');
  return nats;
}

/** Serves until SIGTERM or SIGINT. @throws Error in one line */
async function runAttentionWorker(options: AttentionWorkerOptions): Promise<void> {
  const { serveAttentionWorker } = await import('../serve/attention/serve-attention-worker.ts');
  await serveAttentionWorker(options);
}

async function chosen(options: InstanceJoinOptions, log: (line: string) => void) {
  const { withChosenDop } = await import('../serve/attention/choose-attention-workers.ts');
  return withChosenDop(options, defaultInstance, log);
}

/** The attention workers of the instance: child processes are started. */
async function startAttentionWorkers(given: InstanceJoinOptions, log: (line: string) => void) {
  const options = given.dop === 'auto' ? await chosen(given, log) : given;
  const workers = servedAttentionWorkers(options);
  if (workers === undefined) return { instance: undefined, close: async () => {} };
  const { startedAttentionWorkers } = await import('../serve/attention/child-attention-workers.ts');
  const { settings, close } = await startedAttentionWorkers(options, workers, log);
  return { instance: 'addresses' in settings ? { ...settings, waits: true } : settings, close };
}

async function openProbes(host: string, port: number): Promise<ProbeServer> {
  const { ProbeServer } = await import('../serve/host/probe-server.ts');
  const version = packageVersion();
  return ProbeServer.open(host, port, version);
}

/** Serves until SIGTERM or SIGINT. @throws Error when the instance can no longer serve */
async function serveInstance(nats: NatsServers, options: InstanceJoinOptions): Promise<void> {
  // These modules load slowly: invalid options are refused before.
  const [{ openLog }, { openClusterInstance }] = await Promise.all([
    import('../serve/host/server-log.ts'),
    import('../serve/open-cluster.ts'),
  ]);
  const { log } = openLog(options, options.name === undefined ? {} : { instance: options.name });
  const { probePort, probeHost } = options;
  const probes = probePort === undefined ? undefined : await openProbes(probeHost, probePort);
  const { instance: attentionWorkers, close } = await startAttentionWorkers(options, log);
  const member = await openClusterInstance(nats, options, attentionWorkers, log).catch(async (error: unknown) => {
    await close();
    throw error;
  });
  try {
    console.log(describeInstances(member.modelId, [member.description]));
    probes?.show(member);
    if (probes !== undefined) console.log(`Probes on http://${probeHost}:${probes.port}`);
    console.log(`Joined as ${member.name}`);
    process.send?.({ joined: member.description, incarnation: member.incarnation } satisfies JoinedMessage);
    const end = await Promise.race([stopSignal(), member.ended]);
    if (typeof end === 'string') throw new Error(`Cannot continue serving: ${end}`);
    log(`Draining: new requests go elsewhere, and running ones finish within ${options.drainTimeout} s`);
    // Without its parent the process has no supervisor that waits for it.
    const finished = await member.drain(end.stop === 'disconnect' ? 0 : 1000 * options.drainTimeout);
    log(finished ? 'Leaving' : 'Leaving: running requests continue on other instances');
  } finally {
    probes?.close();
    await member.close();
    await close();
    if (member.isHung()) killAfterWrites();
    else exitAfterWrites();
  }
}
