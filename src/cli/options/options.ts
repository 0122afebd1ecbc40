// Options that several commands share, from flags or from a YAML file of the same names.
import { type Command, Option } from 'commander';
import { z } from 'zod';
import { evictionKinds } from '../../core/kvcache/eviction.ts';
import { defaultWatchdog } from '../../core/membership/step-watchdog.ts';
import { inputChoices, kvTypeChoices, weightsForms } from '../../engine/forms.ts';
import { byteCount } from '../../util/byte-count.ts';
import { kvEventFields } from '../serve/fleet/kv-event-options.ts';
import { availableThreads } from '../serve/host/cgroup.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { describeIssue } from '../usage-issue.ts';
import { readYaml } from '../yaml-file.ts';
import { dopFields, shard } from './attention-worker-flags.ts';
import { liveBorrowFields } from './borrow-options.ts';
import { clusterName, natsFields } from './nats-options.ts';
import { liveCppFields } from './pipeline-options.ts';
import { logFormat, logFormats, logLevel, logLevels, numeric } from './schema-parts.ts';
import { servedSloFields } from './slo-options.ts';
import { sparseFields } from './sparse-options.ts';

const bytes = z.union([z.string(), z.number()], 'write 512m or 2g').transform((value, context) => {
  try {
    return byteCount(value);
  } catch (error) {
    context.addIssue({ code: 'custom', message: error instanceof Error ? error.message : 'no size' });
    return z.NEVER;
  }
});
const count = (least: number, most = Number.MAX_SAFE_INTEGER) => numeric(z.number().int().min(least).max(most));

export const modelOptionsSchema = z.object({
  model: z.string().optional(),
  weights: z.enum(weightsForms).default('native'),
  inputs: z.enum(inputChoices).default('auto'),
  kvType: z.enum(kvTypeChoices).optional(),
  threads: count(1, 1024).default(() => availableThreads()),
  context: count(1).optional(),
  kvMemory: bytes.optional(),
  eviction: z.enum(evictionKinds).default('lru'),
  /** Undefined: the instance warms up. */
  warmUp: z.boolean().optional(),
});

/** Seconds in which requests may finish when a process stops. */
const drainTimeout = count(0, 86_400).default(30);
/** A compute thread that does not advance for so many seconds hangs; 0: never. */
const watchdog = count(0, 86_400).default(defaultWatchdog.floorUs / 1e6);

/** Instances of one process at most. */
const instancesMax = 64;
/** Models of one endpoint at most. */
const modelsMax = 64;

/** Transports of keys and values between processes; instances of one process may also copy them in memory. */
export const processTransports = ['auto', 'shared', 'tcp', 'rdma'] as const;
export const transports = ['memory', ...processTransports] as const;

export const instanceRoles = ['mixed', 'prefill', 'decode', 'store'] as const;

/** Tiers of an instance below its KV memory. */
const liveTierFields = {
  hostMemory: bytes.optional(),
  ssd: z.string().min(1).optional(),
  ssdSize: bytes.optional(),
};

/** Settings of a single instance. */
const instanceSchema = z.strictObject({
  role: z.enum(instanceRoles).default('mixed'),
  threads: count(1, 1024).optional(),
  kvMemory: bytes.optional(),
  ...liveTierFields,
});
export type InstanceOptions = z.infer<typeof instanceSchema>;
/** A mixed instance with default settings. */
export const defaultInstance: InstanceOptions = { role: 'mixed' };

/** A number of equal instances, or a list of instances. */
const instancesSchema = z
  .union(
    [
      count(1, instancesMax).transform((n): InstanceOptions[] => Array.from({ length: n }, () => defaultInstance)),
      z.array(z.preprocess(inCamelCase, instanceSchema)).min(1).max(instancesMax),
    ],
    `write a number from 1 to ${instancesMax}, or a list of {role, threads, kv-memory, host-memory, ssd, ssd-size}`,
  )
  .refine((instances) => {
    const roles = new Set(instances.map(({ role }) => role));
    return roles.has('prefill') === roles.has('decode');
  }, 'prefill instances need decode instances, and the reverse')
  .refine((instances) => instances.some(computes), 'a store computes nothing: add instances that compute');

/** True for all roles but store. */
export function computes({ role }: { readonly role: string }): boolean {
  return role !== 'store';
}

const apiKey = z.string().min(1, 'a key is empty');
const keyList = z.union([apiKey.transform((key) => [key]), z.array(apiKey)]).default([]);

/** A share of the KV memory. */
const pinMemory = numeric(z.number().min(0).max(0.9)).default(0);

/** Milliseconds of a step. */
export const stepMs = numeric(z.number().min(1).max(10_000)).optional();

const token = z.string().min(16, 'a token has at least 16 characters').optional();

export const serveOptionsSchema = modelOptionsSchema.extend({
  /** Several models of `--model`, in place of `model`. */
  models: z.array(z.string().min(1)).max(modelsMax).optional(),
  modelsMemory: bytes.optional(),
  ...servedSloFields,
  pinMemory,
  stepMs,
  fleet: z.string().min(1).optional(),
  ...kvEventFields,
  instances: instancesSchema.optional(),
  transport: z.enum(transports).optional(),
  ...liveTierFields,
  ...natsFields,
  requestTimeout: count(1, 86_400).optional(),
  host: z.string().default('127.0.0.1'),
  port: count(0, 65_535).default(8000),
  apiKey: keyList,
  adminKey: keyList,
  tlsCert: z.string().min(1).optional(),
  tlsKey: z.string().min(1).optional(),
  apiKeys: z.string().min(1).optional(),
  servedModelName: z.string().min(1).optional(),
  chatTemplate: z.string().min(1).optional(),
  data: z.string().min(1).optional(),
  queue: count(1).default(256),
  copyHotPrefixes: z.boolean().default(false),
  watchdog,
  drainWait: count(0, 3_600).default(5),
  drainTimeout,
  record: z.string().min(1).optional(),
  otlpEndpoint: z
    .string()
    .regex(/^https?:\/\/[^\s]+$/, 'write http://HOST:4318')
    .optional(),
  corsOrigin: z.union([z.string().transform((origin) => [origin]), z.array(z.string())]).default([]),
  bodyLimit: bytes.default(16 * 2 ** 20),
  unknownFields: z.enum(['refuse', 'ignore']).default('refuse'),
  logLevel,
  logFormat,
  ...liveBorrowFields,
  ...liveCppFields,
  ...dopFields,
  ...sparseFields,
  token,
});

export const joinOptionsSchema = modelOptionsSchema.extend({
  ...natsFields,
  engine: z
    .string()
    .regex(/^https?:\/\/[^\s/@?#]+(\/[^\s@?#]*)?$/, 'write http://HOST:PORT, without user, password and query')
    .optional(),
  engineKey: z.string().min(1).optional(),
  name: clusterName.optional(),
  probePort: count(0, 65_535).optional(),
  probeHost: z.string().min(1).default('127.0.0.1'),
  role: z.enum([...instanceRoles, 'attention']).default('mixed'),
  shard,
  watchdog,
  drainTimeout,
  roleSwitch: z.boolean().default(false),
  pinMemory,
  stepMs,
  ...liveTierFields,
  pagesHost: z
    .string()
    .regex(/^[\w.:-]{1,253}$/, 'expected a name or an address')
    .optional(),
  pagesPort: count(0, 65_535).default(0),
  transport: z.enum(processTransports).default('auto'),
  token,
  logLevel,
  logFormat,
  ...liveBorrowFields,
  ...sparseFields,
  ...dopFields,
});
export type JoinOptions = z.infer<typeof joinOptionsSchema>;
/** Options of an instance that joins a cluster. */
export type InstanceJoinOptions = Omit<JoinOptions, 'role'> & { readonly role: (typeof instanceRoles)[number] };

export type ModelOptions = z.infer<typeof modelOptionsSchema>;
export type ServeOptions = z.infer<typeof serveOptionsSchema>;

export function modelFlag(): Option {
  const kinds = 'Load a GGUF file, a Hugging Face directory, or org/name[@revision][:file.gguf] from the hub';
  return new Option('--model <model>', `${kinds} (default: the embedded kvasir-tiny)`);
}

/** Flags of the model and its forms. @param otherwise describes the default model, if it is not the embedded one */
export function addFormFlags(command: Command, otherwise?: string, model = modelFlag()): Command {
  return command
    .addOption(otherwise === undefined ? model : model.default(undefined, otherwise))
    .addOption(
      new Option('--weights <form>', 'Keep weights in memory in this form (default: native)').choices(weightsForms),
    )
    .addOption(
      new Option('--inputs <form>', 'Round the inputs of linear layers to this form (default: auto)').choices(
        inputChoices,
      ),
    )
    .addOption(
      new Option(
        '--kv-type <type>',
        'Keep keys and values in this type; q8 takes about half the memory (default: bf16; f32 beside --inputs f32)',
      ).choices(kvTypeChoices),
    );
}

/** Flags of the model and its memory. Defaults are in the schema, so that a config file can override them. */
export function addModelFlags(command: Command, model = modelFlag()): Command {
  return addFormFlags(command.optionsGroup(groups.model), undefined, model)
    .option('--context <tokens>', "Limit prompt plus output to this length (default: the model's own, at most 8192)")
    .option('--threads <n>', 'Compute with this number of threads (default: all cores)')
    .option('--config <file>', 'Read options of the same names from a YAML file; flags take precedence')
    .optionsGroup(groups.memory)
    .option('--kv-memory <size>', 'Reserve this memory for KV pages, for example 512m or 2g (default: by context)')
    .addOption(
      new Option('--eviction <order>', 'Evict cached blocks in this order (default: lru)').choices(evictionKinds),
    )
    .optionsGroup(groups.model)
    .option('--no-warm-up', 'Start without steps that fill caches: ready earlier, but the first requests are slower');
}

/** Flags of the scheduler of instances. */
export function addSchedulerFlags(command: Command): Command {
  return command
    .optionsGroup(groups.memory)
    .option('--pin-memory <share>', 'Let pinned prefixes hold at most this share of the KV memory (default: 0)')
    .optionsGroup(groups.scheduling)
    .addOption(stepFlag());
}

/** A longer step computes prompts in larger chunks, and delays the tokens beside them. */
export function stepFlag(): Option {
  return new Option('--step-ms <ms>', 'Limit the predicted time of a step that decodes and prefills (default: 50)');
}

export function addWatchdogFlag(command: Command): Command {
  return command
    .optionsGroup(groups.limits)
    .option(
      '--watchdog <seconds>',
      'Give an instance up if a step takes this long and 20 times its prediction; 0: never (default: 60)',
    );
}

export function addLogFlags(command: Command): Command {
  return command
    .optionsGroup(groups.observability)
    .addOption(
      new Option('--log-level <level>', 'Write log lines of this level and above (default: info)').choices(logLevels),
    )
    .addOption(
      new Option(
        '--log-format <format>',
        'Write log lines for people or as JSON (default: text on a terminal, else json)',
      ).choices(logFormats),
    );
}

/**
 * Parses options: flags take precedence over the config file, and that over defaults.
 * @throws UsageError naming the invalid option
 */
export function readOptions<S extends z.ZodObject>(schema: S, flags: Record<string, unknown>): z.infer<S> {
  const given = givenOptions(flags);
  for (const name of Object.keys(given)) {
    if (!Object.hasOwn(schema.shape, name))
      throw new UsageError(`Cannot read ${String(flags.config)}: unknown option '${name}'`);
  }
  const parsed = schema.safeParse(given);
  if (parsed.success) return parsed.data;
  throw new UsageError(describeIssue(parsed.error.issues, given, toFlag));
}

/** Options of flags and config file by name, unparsed. */
export function givenOptions({ config, ...own }: Record<string, unknown>): Record<string, unknown> {
  return withModelList({ ...(typeof config === 'string' ? readConfig(config) : {}), ...withCurrentNames(own) });
}

/** A list of models with one entry is that model; a longer one is `models`. */
function withModelList({ model, ...given }: Record<string, unknown>): Record<string, unknown> {
  if (!Array.isArray(model)) return model === undefined ? given : { ...given, model };
  return model.length === 1 ? { ...given, model: model[0] } : { ...given, models: model };
}

/** Options that had another name in an earlier version; the older names are still read. */
const currentNames: Readonly<Record<string, string>> = {
  guestShare: 'remoteAttentionShare',
  oddsMax: 'refusalProbabilityMax',
  silentMs: 'heartbeatTimeoutMs',
  spreadMs: 'remoteCacheMs',
  tries: 'attempts',
};

function withCurrentNames(given: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(given).map(([name, value]) => [
      Object.hasOwn(currentNames, name) ? currentNames[name] : name,
      value,
    ]),
  );
}

/** Options of a YAML file by name, unparsed. @throws UsageError */
export function readConfig(path: string): Record<string, unknown> {
  let parsed: unknown;
  try {
    parsed = readYaml(path);
  } catch (error) {
    throw new UsageError(
      `Cannot read config ${path}: ${error instanceof Error ? error.message.split('\n')[0] : 'unreadable'}`,
    );
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw new UsageError(`Cannot read config ${path}: it is not a mapping of options`);
  }
  return withCurrentNames(inCamelCase(parsed) as Record<string, unknown>);
}

/** Option names of YAML keys, which may be written like flags. */
export function inCamelCase(given: unknown): unknown {
  if (typeof given !== 'object' || given === null || Array.isArray(given)) return given;
  return Object.fromEntries(
    Object.entries(given).map(([name, value]) => [name.replace(/-(\w)/g, (_, c: string) => c.toUpperCase()), value]),
  );
}

/** The name of an option as a flag: `kvMemory` is `kv-memory`. */
export function toFlag(name: string): string {
  return name.replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`);
}
