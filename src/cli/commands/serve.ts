// `kvasir serve`: refuses options that contradict each other, then serves a model until SIGTERM or SIGINT.
import { Command, Option } from 'commander';
import { addDopFlags } from '../options/attention-worker-flags.ts';
import { dopOptionNames, servedAttentionWorkers, withWorkerRoles } from '../options/attention-worker-settings.ts';
import { addLiveBorrowFlags, withoutDefaults } from '../options/borrow-options.ts';
import { refuseIneffective, refuseStoreOptions } from '../options/ineffective-options.ts';
import { addNatsFlags, natsOptionNames, natsServers } from '../options/nats-options.ts';
import {
  addLogFlags,
  addModelFlags,
  addSchedulerFlags,
  addWatchdogFlag,
  computes,
  defaultInstance,
  givenOptions,
  modelFlag,
  readOptions,
  type ServeOptions,
  serveOptionsSchema,
  toFlag,
  transports,
} from '../options/options.ts';
import { addLiveCppFlags } from '../options/pipeline-options.ts';
import { addServedSloFlags, copyHotPrefixesFlag } from '../options/slo-options.ts';
import { addSparseFlags, servedSparsity } from '../options/sparse-options.ts';
import { addKvEventFlags, kvEventSource } from '../serve/fleet/kv-event-options.ts';
import { boundHeapGrowth } from '../serve/host/heap-growth.ts';
import { refuseSharedFolders } from '../serve/instance-tiers.ts';
import { refuseTooMuchMemory } from '../serve/memory-limits.ts';
import { addHelpAll, groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';

/** Options of instances, which a gateway without instances refuses. */
const instanceOptionNames = [
  'threads',
  'weights',
  'inputs',
  'kvType',
  'kvMemory',
  'eviction',
  'pinMemory',
  'hostMemory',
  'ssd',
  'ssdSize',
  'borrow',
  'transport',
  ...dopOptionNames,
] as const;

export function serveCommand(): Command {
  const command = new Command('serve');
  addServedFlags(addSparseFlags(addSchedulerFlags(addModelFlags(command, modelsFlag()))))
    .optionsGroup(groups.http)
    .option('--host <address>', 'Listen on this address (default: 127.0.0.1)')
    .option('--port <n>', 'Listen on this port; 0 selects a free one (default: 8000)');
  addSecurityFlags(command)
    .option('--cors-origin <origin...>', 'Allow browsers on these origins (default: none)')
    .option('--data <folder>', 'Keep files and batches in this folder (default: discard them at exit)');
  addWatchdogFlag(addLimitFlags(command))
    .optionsGroup(groups.cluster)
    .option('--instances <n>', 'Run this number of instances, as threads, or with --nats as processes (default: 1)')
    .option('--fleet <file>', 'Serve a model that the vLLM and SGLang engines in this YAML file compute')
    .addOption(
      new Option('--transport <way>', 'Move keys and values between instances this way (default: auto)').choices(
        transports,
      ),
    );
  addDopFlags(addKvEventFlags(addNatsFlags(addTierFlags(command)))).addOption(
    new Option(
      '--token <secret>',
      'Share this secret with the processes of the cluster, and with attention workers at HOST:PORT',
    ).env('KVASIR_TOKEN'),
  );
  addObservabilityFlags(addLiveCppFlags(addLiveBorrowFlags(addServedSloFlags(command))));
  const rare = [
    groups.sparse,
    groups.cluster,
    groups.scheduling,
    groups.lending,
    groups.pipeline,
    groups.tiers,
    groups.observability,
  ];
  return addHelpAll(command, ...rare).action(async (given: Record<string, unknown>) => {
    const flags = withWorkerRoles(withoutDefaults(given));
    const options = readOptions(serveOptionsSchema, flags);
    refuseIneffective(givenOptions(flags), options);
    for (const own of options.instances ?? []) if (!computes(own)) refuseStoreOptions(own, { ...options, ...own });
    refuseSharedFolders(options, options.instances ?? []);
    refuseHalfTls(options);
    servedAttentionWorkers(options);
    servedSparsity(options);
    refuseModels(options);
    if (options.fleet === undefined && (options.nats === undefined || options.instances !== undefined))
      refuseTooMuchMemory(options, options.instances ?? [defaultInstance]);
    if (options.nats === undefined) refuseClusters(options);
    else refuseGatewayOptions(options, givenOptions(flags));
    natsServers(options);
    kvEventSource(options);
    if (options.fleet !== undefined) refuseFleetOptions(options, givenOptions(flags));
    boundHeapGrowth();
    // The gateway loads slowly: invalid options are refused before.
    const { serveModel } = await import('../serve/serve-model.ts');
    await serveModel(options);
  });
}

/** What clients see of the models. */
function addServedFlags(command: Command): Command {
  return command
    .optionsGroup(groups.model)
    .option('--served-model-name <id>', 'Offer the model to clients under this id (default: the file or folder name)')
    .option(
      '--models-memory <size>',
      'With several models, unload idle ones above this memory, least recently used first (default: 90 % of what is free)',
    )
    .option('--chat-template <file>', "Write chats with the Jinja template in this file (default: the model's own)");
}

/** Limits of requests, and what happens to fields without a meaning. */
function addLimitFlags(command: Command): Command {
  return command
    .optionsGroup(groups.limits)
    .option('--queue <n>', 'Accept at most this number of requests at once, then answer 429 (default: 256)')
    .addOption(copyHotPrefixesFlag())
    .option('--body-limit <size>', 'Refuse larger request bodies (default: 16m)')
    .addOption(
      new Option(
        '--unknown-fields <way>',
        'Treat fields of requests without a meaning here this way (default: refuse)',
      ).choices(['refuse', 'ignore']),
    )
    .option('--request-timeout <seconds>', 'Fail a request after this time (default: 600 with --nats, else none)')
    .option(
      '--drain-wait <seconds>',
      'After SIGTERM, keep the port open for this time while /ready is 503 (default: 5)',
    )
    .option('--drain-timeout <seconds>', 'When stopping, let running requests finish for this time (default: 30)');
}

function addTierFlags(command: Command): Command {
  return command
    .optionsGroup(groups.tiers)
    .option('--host-memory <size>', 'Cache blocks in this much host memory of each instance (default: none)')
    .option('--ssd <folder>', 'Cache blocks on SSD in this folder, also across restarts (default: none)')
    .option(
      '--ssd-size <size>',
      'Allocate this much SSD for all instances together (default: 64 contexts, at most 10g)',
    );
}

function addObservabilityFlags(command: Command): Command {
  return addLogFlags(command)
    .option(
      '--otlp-endpoint <url>',
      'Send traces to this OpenTelemetry collector (default: OTEL_EXPORTER_OTLP_ENDPOINT)',
    )
    .option(
      '--record <file>',
      'Record arrivals, lengths, keyed block hashes, placements and times, without text, in this new file',
    );
}

/** Each occurrence adds a model. */
function modelsFlag(): Option {
  const collect = (model: string, models: readonly string[] = []): readonly string[] => [...models, model];
  const option = modelFlag();
  option.description = option.description.replace(
    ' (default',
    '; NAME=MODEL names it, and several load on demand (default',
  );
  return option.argParser(collect);
}

/** Refuses what several models behind one endpoint exclude. */
function refuseModels(options: ServeOptions): void {
  const { models, modelsMemory } = options;
  if (models === undefined) {
    if (modelsMemory !== undefined) throw new UsageError('Cannot use --models-memory: it needs several --model');
    return;
  }
  const refused = (flag: string, why: string): UsageError =>
    new UsageError(`Cannot use --${flag} with several models: ${why}`);
  if (options.nats !== undefined) throw refused('nats', 'a cluster of processes serves one model');
  if (options.record !== undefined) throw refused('record', 'a recording has one model');
  if (options.servedModelName !== undefined) throw refused('served-model-name', 'write --model NAME=MODEL');
  if (options.kvEvents !== undefined) throw refused('kv-events', 'they do not name the model of a block');
  if (options.chatTemplate !== undefined) throw refused('chat-template', 'each model has its own template');
  const ssd = options.ssd ?? options.instances?.find((own) => own.ssd !== undefined)?.ssd;
  if (ssd !== undefined) throw refused('ssd', 'the blocks of different models cannot share a folder');
  if (servedAttentionWorkers(options) !== undefined) throw refused('dop', 'attention workers serve one model');
}

function refuseHalfTls({ tlsCert, tlsKey }: ServeOptions): void {
  if ((tlsCert === undefined) === (tlsKey === undefined)) return;
  throw new UsageError('Cannot serve HTTPS: --tls-cert and --tls-key belong together');
}

/** The API keys of callers, and HTTPS. */
function addSecurityFlags(command: Command): Command {
  return command
    .addOption(
      new Option('--api-key <key...>', 'Require one of these keys from clients (default: none)').env('KVASIR_API_KEY'),
    )
    .addOption(
      new Option('--admin-key <key...>', 'Accept these keys for metrics, the cluster view and role changes too').env(
        'KVASIR_ADMIN_KEY',
      ),
    )
    .option('--api-keys <file>', 'Accept the hashed keys of this file, with roles and limits; reread when it changes')
    .option('--tls-cert <file>', 'Serve HTTPS with this certificate chain (PEM); reread when it is replaced')
    .option('--tls-key <file>', 'The private key of --tls-cert (PEM)');
}

/** Refuses options that have no effect without a cluster of processes, or without separate prefill and decode. */
function refuseClusters(options: ServeOptions): void {
  const names = natsOptionNames;
  const wrong = options.insecure ? 'insecure' : names.find((name) => options[name] !== undefined);
  if (wrong !== undefined) throw new UsageError(`Cannot use --${toFlag(wrong)}: it needs --nats`);
  const { inlineTokens, instances = [], roleSwitch } = options;
  if (inlineTokens === 0 || roleSwitch || instances.some(({ role }) => role === 'decode')) return;
  throw new UsageError(
    'Cannot use --inline-tokens: it needs prefill and decode instances: a mixed instance always prefills its own prompts',
  );
}

/** Refuses options that have no effect when engines elsewhere compute. */
function refuseFleetOptions(options: ServeOptions, given: Record<string, unknown>): void {
  if (options.models !== undefined) throw new UsageError('Cannot use --fleet with several models: a fleet serves one');
  const names = [
    'nats',
    'instances',
    'roleSwitch',
    'copyHotPrefixes',
    'cppGroup',
    'sparse',
    'watchdog',
    ...instanceOptionNames,
  ] as const;
  const wrong = names.find((name) => given[name] !== undefined && given[name] !== false);
  if (wrong !== undefined) throw new UsageError(`Cannot use --${toFlag(wrong)} with --fleet: its engines compute`);
}

/** Refuses options that have no effect with --nats. */
function refuseGatewayOptions(options: ServeOptions, given: Record<string, unknown>): void {
  if (options.transport === 'memory')
    throw new UsageError('Cannot use --transport memory with --nats: it is for instances of one process');
  const wrong = options.instances === undefined && instanceOptionNames.find((name) => given[name] !== undefined);
  if (wrong)
    throw new UsageError(
      `Cannot use --${toFlag(wrong)} with --nats: a gateway computes nothing, \`kvasir join\` takes it`,
    );
}
