// `kvasir serve`: what flags say, refused where it cannot be; then a model is loaded and served until SIGTERM or SIGINT.
import { Command, Option } from 'commander';
import { addLiveBorrowFlags, withoutDefaults } from '../options/borrow-options.ts';
import { refuseIdle } from '../options/ineffective-options.ts';
import {
  addClusterFlags,
  addModelFlags,
  computes,
  givenOptions,
  oneInstance,
  readOptions,
  type ServeOptions,
  serveOptionsSchema,
  toFlag,
  transports,
} from '../options/options.ts';
import { addLiveCppFlags } from '../options/pipeline-options.ts';
import { addServedSloFlags } from '../options/slo-options.ts';
import { refuseIdleStore } from '../options/store-flags.ts';
import { refuseSharedFolders } from '../serve/instance-tiers.ts';
import { refuseTooMuchMemory } from '../serve/memory-limits.ts';
import { UsageError } from '../usage-error.ts';

/** What a gateway without instances has no use for. */
const ofInstances = [
  'threads',
  'weights',
  'inputs',
  'kvMemory',
  'eviction',
  'pinMemory',
  'hostMemory',
  'ssd',
  'ssdSize',
  'borrow',
  'transport',
] as const;
export function serveCommand(): Command {
  const command = new Command('serve').description('serve a model over an OpenAI-compatible endpoint');
  return addLiveCppFlags(addLiveBorrowFlags(addServedSloFlags(addClusterFlags(addModelFlags(command)))))
    .option(
      '--instances <n>',
      'instances that serve, each on a thread of its own, or with --nats a process (default: 1)',
    )
    .addOption(
      new Option('--transport <way>', 'how keys and values go from one instance to another (default: auto)').choices(
        transports,
      ),
    )
    .option('--host-memory <size>', 'of each instance, for cached blocks besides its KV memory (default: none)')
    .option('--ssd <folder>', 'where cached blocks are kept besides: found again after a restart (default: none)')
    .option('--ssd-size <size>', 'of all instances together, allocated at start (default: 10g)')
    .option('--pin-memory <share>', 'of the KV memory, what pinned prefixes may hold (default: 0)')
    .option('--host <address>', 'address to listen on (default: 127.0.0.1)')
    .option('--port <n>', 'port to listen on, 0 for any (default: 8000)')
    .option('--data <folder>', 'where files and batches outlive the process (default: they end with it)')
    .option('--api-key <key...>', 'keys that clients must send one of (default: none needed)')
    .option('--served-model-name <id>', "model id for clients (default: the file's or folder's stem)")
    .option('--queue <n>', 'requests accepted at once; past it clients get 429 (default: 256)')
    .option('--cors-origin <origin...>', 'browser origins that may call (default: none)')
    .option('--body-limit <size>', 'largest request body (default: 16m)')
    .option(
      '--otlp-endpoint <url>',
      'OpenTelemetry collector for traces, as OTEL_EXPORTER_OTLP_ENDPOINT (default: none)',
    )
    .option('--log-level <level>', 'debug, info, warn, error or silent (default: info)')
    .option('--request-timeout <seconds>', 'of a cluster: a request that has not ended by then fails (default: 600)')
    .action(async (given: Record<string, unknown>) => {
      const flags = withoutDefaults(given);
      const options = readOptions(serveOptionsSchema, flags);
      refuseIdle(givenOptions(flags), options);
      for (const own of options.instances ?? []) if (!computes(own)) refuseIdleStore(own, { ...options, ...own });
      refuseSharedFolders(options, options.instances ?? []);
      if (options.nats === undefined || options.instances !== undefined)
        refuseTooMuchMemory(options, options.instances ?? [oneInstance]);
      if (options.nats === undefined) refuseClusters(options);
      else refuseUnused(options, givenOptions(flags));
      // A gateway takes long to load, and whoever is refused needs none.
      const { serveModel } = await import('../serve/serve-model.ts');
      await serveModel(options);
    });
}

/** Of one process. Mixed instances compute every prompt where it decodes. */
function refuseClusters(options: ServeOptions): void {
  const wrong = (['cluster', 'requestTimeout'] as const).find((name) => options[name] !== undefined);
  if (wrong !== undefined) throw new UsageError(`Cannot use --${toFlag(wrong)}: it needs --nats`);
  const { inlineTokens, instances = [], roleSwitch } = options;
  if (inlineTokens === 0 || roleSwitch || instances.some(({ role }) => role === 'decode')) return;
  throw new UsageError(
    'Cannot use --inline-tokens: it needs instances that decode what others prefill: mixed ones compute every prompt where it decodes',
  );
}

function refuseUnused(options: ServeOptions, given: Record<string, unknown>): void {
  if (options.transport === 'memory')
    throw new UsageError('Cannot use --transport memory with --nats: it is for instances of one process');
  const wrong = options.instances === undefined && ofInstances.find((name) => given[name] !== undefined);
  if (wrong)
    throw new UsageError(
      `Cannot use --${toFlag(wrong)} with --nats: a gateway computes nothing, \`kvasir join\` takes it`,
    );
}
