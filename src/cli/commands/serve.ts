// `kvasir serve`: loads a model, listens, and drains on SIGTERM or SIGINT.
import { Command, Option } from 'commander';
import type { Logger } from 'pino';
import type { ClusterPort, InferencePort } from '../../cluster/ports.ts';
import type { DataFolder } from '../../gateway/data-folder.ts';
import { OtlpExporter } from '../../gateway/otlp-exporter.ts';
import type { ServedModel } from '../../gateway/served-model.ts';
import { type Gateway, listen } from '../../gateway/server.ts';
import type { InstanceDescription } from '../../live/protocol.ts';
import { addLiveBorrowFlags, servedLending, withoutDefaults } from '../borrow-options.ts';
import { ChildInstances } from '../child-instances.ts';
import { addLiveCppFlags, servedPipeline } from '../cpp-options.ts';
import { refuseIdle } from '../idle-options.ts';
import { refuseSharedFolders } from '../instance-tiers.ts';
import { leftBehind } from '../left-behind.ts';
import { refuseTooMuchMemory } from '../memory-limits.ts';
import { answerMemoryQuestions } from '../memory-questions.ts';
import { openClusterGateway } from '../open-cluster.ts';
import { openData } from '../open-data.ts';
import { openServing } from '../open-serving.ts';
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
} from '../options.ts';
import { openLog, type ServerLog } from '../server-log.ts';
import { addServedSloFlags, admissionSettings } from '../slo-options.ts';
import { stopSignal } from '../stop-signal.ts';
import { refuseIdleStore } from '../store-flags.ts';
import type { TextSide } from '../text-side.ts';
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
const streamBufferBytesMax = 2 ** 20;
const drainGraceMs = 30_000;
/** What either way of serving writes to. */
interface Surface extends ServerLog {
  readonly data: DataFolder | undefined;
}

const never = new Promise<void>(() => {});

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
      const log = openLog(options.logLevel);
      const left = options.ssd && leftBehind(options.ssd, options.instances?.length ?? 1);
      if (left) log.logger.warn(left);
      const data = options.data === undefined ? undefined : await openData(options.data, log.log);
      try {
        const surface = { ...log, data: data?.folder };
        if (options.nats === undefined) await serveAlone(options, surface);
        else await serveCluster(options.nats, options, givenOptions(flags), surface);
      } finally {
        await data?.release();
      }
    });
}

async function serveAlone(options: ServeOptions, surface: Surface): Promise<void> {
  const wrong = (['cluster', 'requestTimeout'] as const).find((name) => options[name] !== undefined);
  if (wrong !== undefined) throw new UsageError(`Cannot use --${toFlag(wrong)}: it needs --nats`);
  refuseInline(options);
  const pipeline = servedPipeline(options);
  const serving = await openServing(options, {
    ...options,
    pipeline,
    admission: admissionSettings(options),
    traces: otlpEndpoint(options) !== undefined,
    lending: servedLending(options),
    log: surface.log,
  });
  try {
    const gateway = await openGateway(serving, options, surface);
    try {
      answerMemoryQuestions(options.instances?.length ?? 1);
      console.log(describeInstances(serving.model.id, await serving.cluster.ready()));
      announce(serving.model, gateway, options);
      await served(serving.cluster.ended, surface);
    } finally {
      await gateway.drain(drainGraceMs);
    }
  } finally {
    await serving.close();
  }
}

/** Mixed instances compute every prompt where it decodes. */
function refuseInline({ inlineTokens, instances = [], roleSwitch }: ServeOptions): void {
  if (inlineTokens === 0 || roleSwitch || instances.some(({ role }) => role === 'decode')) return;
  throw new UsageError(
    'Cannot use --inline-tokens: it needs instances that decode what others prefill: mixed ones compute every prompt where it decodes',
  );
}

/** Instances join by themselves, or are processes that this one starts. */
async function serveCluster(
  nats: string,
  options: ServeOptions,
  given: Record<string, unknown>,
  surface: Surface,
): Promise<void> {
  refuseUnused(options, given);
  const member = await openClusterGateway(nats, options, {
    log: surface.log,
    traces: otlpEndpoint(options) !== undefined,
  });
  try {
    const gateway = await openGateway(member, options, surface);
    const children =
      options.instances &&
      new ChildInstances(nats, options, options.instances, { log: surface.log, died: member.died });
    try {
      console.log(
        children === undefined
          ? `Model ${member.model.id}: context ${member.model.contextTokens} tokens, served by those who join`
          : describeInstances(member.model.id, await children.joined()),
      );
      announce(member.model, gateway, options);
      await served(never, surface);
    } finally {
      await gateway.drain(drainGraceMs);
      await children?.close();
    }
  } finally {
    await member.close();
  }
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

/** @throws Error when host and port cannot be listened on */
function openGateway(
  { model, cluster, encode }: TextSide & { readonly cluster: InferencePort & ClusterPort },
  options: ServeOptions,
  { logger, data }: Surface,
): Promise<Gateway> {
  const settings = {
    model,
    port: cluster,
    cluster,
    encode,
    logger,
    exporter: createExporter(options, logger),
    apiKeys: options.apiKey,
    data,
    corsOrigins: options.corsOrigin,
    bodyBytesMax: options.bodyLimit,
    streamBufferBytesMax,
    choicesMax: options.queue,
    sloClasses: new Map(Object.entries(options.sloClasses ?? {})),
  };
  return listen(settings, options.host, options.port);
}

function otlpEndpoint(options: ServeOptions): string | undefined {
  return options.otlpEndpoint ?? (process.env.OTEL_EXPORTER_OTLP_ENDPOINT || undefined);
}

/** @throws UsageError for headers that cannot be read */
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

function announce(model: ServedModel, gateway: Gateway, options: ServeOptions): void {
  const url = `http://${gateway.host.includes(':') ? `[${gateway.host}]` : gateway.host}:${gateway.port}`;
  console.log(`Serving on ${url}`);
  // The key itself is not for logs.
  const key = options.apiKey.length === 0 ? '' : ' -H "authorization: Bearer $KEY"';
  const [path, fields] =
    model.chatTemplate === undefined
      ? ['completions', model.tokenizer === undefined ? '"prompt": [1, 2, 3]' : '"prompt": "Once upon a time"']
      : ['chat/completions', '"messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]'];
  console.log(
    `Try: curl ${url}/v1/${path}${key} -H 'content-type: application/json' -d '{"model": "${model.id}", ${fields}}'`,
  );
}

export function describeInstances(id: string, instances: readonly InstanceDescription[]): string {
  const first = instances.find(computes) ?? instances[0];
  if (first === undefined) throw new Error(`Cannot describe model ${id}: no instance serves it`);
  if (!computes(first)) return `Store for model ${id}: ${describeShare(first)}`;
  const { weights, inputs, isa, weightBytes, contextTokens } = first;
  const kernels = isa === 'reference' ? 'none (TypeScript oracle)' : isa;
  const model =
    `Model ${id}: weights ${weights} (${megabytes(weightBytes)}), inputs ${inputs}, instruction set ${kernels}, ` +
    `context ${contextTokens} tokens`;
  if (instances.length === 1) return `${model}, ${describeShare(first)}`;
  return [model, ...instances.map((instance, i) => `Instance ${i}: ${instance.role}, ${describeShare(instance)}`)].join(
    '\n',
  );
}

function describeShare({ threads, kvBytes, tiers, role }: InstanceDescription): string {
  const share =
    role === 'store'
      ? 'no weights, no KV pool'
      : `${threads} ${threads === 1 ? 'thread' : 'threads'}, KV ${megabytes(kvBytes)}`;
  if (tiers === undefined) return share;
  const { hostBlocks, ssdBlocks, blockBytes, found } = tiers;
  const ssd =
    ssdBlocks === 0 ? '' : `, SSD ${megabytes(ssdBlocks * blockBytes)} (${found} of ${ssdBlocks} blocks found)`;
  return `${share}, host memory ${megabytes(hostBlocks * blockBytes)}${ssd}`;
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(0)} MB`;
}

/** Resolves when the server is asked to stop. @throws Error when it can serve no more */
async function served(ended: Promise<void>, { log }: ServerLog): Promise<void> {
  const end = await Promise.race([stopSignal(), ended]);
  if (end !== 'stop') throw new Error('Cannot go on serving: no instance is left; the lines above say why');
  log('Draining: running requests finish, new ones are refused');
}
