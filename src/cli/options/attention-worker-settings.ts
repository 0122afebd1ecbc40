// Which attention workers an instance of `serve` or `join` uses, and what `join --role attention` starts, from checked options.
import type { KvPartition } from '../../core/attention-workers/choose-worker.ts';
import type { AttentionForm } from '../../kernel/native/attention-workers.ts';
import type { ProcessTransport } from '../../runtime/transfer/messenger.ts';
import { UsageError } from '../usage-error.ts';
import {
  givenOptions,
  type InstanceOptions,
  type instanceRoles,
  type JoinOptions,
  type ModelOptions,
  type ServeOptions,
  toFlag,
} from './options.ts';

/** Attention workers at the addresses of processes with this secret. */
export interface AttentionWorkerAddresses {
  readonly addresses: readonly string[];
  readonly token: string;
  /** Time after which another worker takes the shard of a lost one; undefined: never. */
  readonly moveAfterS?: number | undefined;
  /** Waits at the start until they answer and serve no other process; false by default: for a minute. */
  readonly waits?: boolean | undefined;
}

interface SharedSettings {
  readonly partition: KvPartition;
  readonly form: AttentionForm;
  /** Model replicas of the instance, which share its weights. */
  readonly modelWorkers: number;
  /** Batches of a step that run staggered; 1: the step is one batch. */
  readonly batches: number;
  /** How the instance connects to workers of other processes; undefined: 'auto'. */
  readonly transport?: ProcessTransport | undefined;
  /** Threads of all attention workers; model workers have the others. Undefined: each kind has all of the instance. */
  readonly attentionThreads?: number | undefined;
}

/** Attention workers of an instance: threads of its process, or processes at addresses. */
export type AttentionWorkersSettings = SharedSettings & ({ readonly threads: number } | AttentionWorkerAddresses);

/** What `serve` and `join` run: they start child processes themselves. */
export type ServedAttentionWorkers = AttentionWorkersSettings | (SharedSettings & { readonly processes: number });

export interface DopOptions {
  readonly dop?: string | undefined;
  readonly threads: number;
  readonly attentionThreads?: number | undefined;
  readonly attentionWorkers?: 'threads' | 'processes' | readonly string[] | undefined;
  readonly staggeredBatches?: number | undefined;
  readonly moveShardsAfter?: number | undefined;
  readonly partition: KvPartition;
  readonly attentionForm: AttentionForm;
  readonly token?: string | undefined;
  readonly nats?: string | undefined;
  readonly instances?: readonly InstanceOptions[] | undefined;
  /** Role of the instance that joins a cluster. */
  readonly role?: (typeof instanceRoles)[number] | undefined;
  readonly roleSwitch: boolean;
  readonly cppGroup?: number | undefined;
  readonly borrow: boolean;
  readonly hostMemory?: number | undefined;
  readonly ssd?: string | undefined;
  readonly pinMemory: number;
  readonly transport?: ServeOptions['transport'];
}

/** As one batch: two read the weights twice, which costs more than it hides unless contexts are long. */
const batchesByDefault = 1;
/** Model replicas of one process. */
export const modelWorkersMax = 8;

const noLowerTier = 'pages at attention workers have no lower tier';

/** The options of attention workers by name. */
export const dopOptionNames = [
  'dop',
  'attentionWorkers',
  'attentionThreads',
  'staggeredBatches',
  'moveShardsAfter',
  'partition',
  'attentionForm',
] as const;

/**
 * Attention workers of the instance, with --nats of each instance that decodes; undefined: it computes attention itself,
 * or `--dop auto` decides at the start. @throws UsageError
 */
export function servedAttentionWorkers(options: DopOptions): ServedAttentionWorkers | undefined {
  const { dop, attentionWorkers: where = 'threads', token, partition, attentionForm: form } = options;
  const addresses = typeof where === 'string' ? undefined : where;
  const { moveShardsAfter: moveAfterS } = options;
  if (moveAfterS !== undefined && (addresses === undefined || partition !== 'heads'))
    throw new UsageError(
      `Cannot use --move-shards-after ${moveAfterS}: it needs --attention-workers HOST:PORT,... and --partition heads`,
    );
  if (dop === undefined && addresses === undefined) {
    refuseWithoutWorkers(options);
    return undefined;
  }
  if (dop === 'auto') {
    refuseAuto(options, addresses);
    return undefined;
  }
  const [modelWorkers, workers] = dop === undefined ? [1, addresses?.length ?? 0] : dop.split(',').map(Number);
  const conflict = dopConflict(options, modelWorkers, workers);
  if (conflict !== undefined)
    throw new UsageError(`Cannot use ${dop === undefined ? '--attention-workers' : `--dop ${dop}`}: ${conflict}`);
  const batches = modelWorkers > 1 ? modelWorkers + 1 : (options.staggeredBatches ?? batchesByDefault);
  const shared = { partition, form, modelWorkers, batches, attentionThreads: options.attentionThreads };
  // Copies in memory are for instances of one process.
  const transport = options.transport === 'memory' ? undefined : options.transport;
  if (addresses !== undefined && token !== undefined) return { ...shared, transport, addresses, token, moveAfterS };
  return where === 'processes' ? { ...shared, transport, processes: workers } : { ...shared, threads: workers };
}

/** @throws UsageError where the threads of this machine are not those of the workers */
function refuseAuto({ attentionThreads }: DopOptions, addresses: readonly string[] | undefined): void {
  if (addresses !== undefined)
    throw new UsageError(
      `Cannot use --dop auto: it divides the threads of this machine, and --attention-workers has ${addresses.length} addresses: write --dop 1,${addresses.length}`,
    );
  if (attentionThreads !== undefined)
    throw new UsageError('Cannot use --attention-threads: --dop auto chooses it: write --dop 1,2');
}

/** The reason why an instance cannot have these workers beside its other options. */
export function dopConflict(options: DopOptions, modelWorkers: number, workers: number): string | undefined {
  const { attentionWorkers: where = 'threads', token, nats, instances = [], role } = options;
  const addresses = typeof where === 'string' ? undefined : where;
  const receives = role === 'decode' || instances.some((own) => own.role === 'prefill');
  const owners = instances.filter((own) => own.role === 'decode' || own.role === 'mixed');
  const conflicts: readonly (readonly [boolean, string])[] = [
    [modelWorkers > modelWorkersMax, `it has ${modelWorkers} model workers, and ${modelWorkersMax} are supported`],
    [
      modelWorkers > 1 && options.staggeredBatches !== undefined,
      `${modelWorkers} model workers run ${modelWorkers + 1} batches: remove --staggered-batches`,
    ],
    [
      addresses !== undefined && addresses.length !== workers,
      `it has ${workers} attention workers, and --attention-workers has ${addresses?.length} addresses`,
    ],
    [
      addresses !== undefined && token === undefined,
      'attention workers at addresses need the --token of these processes',
    ],
    ...threadConflicts(options, modelWorkers, workers),
    [role === 'prefill', 'a prefill instance computes attention itself: remove --role prefill'],
    [role === 'store', 'a store computes nothing: remove --role store'],
    [
      nats === undefined && instances.length > 1 && !isPrefillBeside(instances),
      `there are ${instances.length} instances, and only prefill instances can be beside one decode instance`,
    ],
    [
      addresses !== undefined && owners.length > 1,
      `${owners.length} instances decode, and attention workers at addresses belong to one`,
    ],
    [
      receives && options.moveShardsAfter !== undefined,
      'a moved shard has a part of the pages, and prompts of prefill instances are received in all: remove --move-shards-after',
    ],
    [
      owners.some(({ hostMemory, ssd }) => (hostMemory ?? ssd) !== undefined),
      `${noLowerTier}: remove host-memory and ssd of the decode instance`,
    ],
    [options.cppGroup !== undefined, 'prompts of pipeline groups do not reach attention workers: remove --cpp-group'],
    [options.roleSwitch, 'an instance with attention workers keeps its role: remove --role-switch'],
    [options.borrow, 'pages at attention workers cannot be lent: remove --borrow'],
    [options.hostMemory !== undefined, `${noLowerTier}: remove --host-memory`],
    [options.ssd !== undefined, `${noLowerTier}: remove --ssd`],
    [options.pinMemory > 0, 'prefixes at attention workers cannot be pinned: remove --pin-memory'],
  ];
  return conflicts.find(([applies]) => applies)?.[1];
}

function threadConflicts(options: DopOptions, modelWorkers: number, workers: number): (readonly [boolean, string])[] {
  const { attentionThreads, attentionWorkers: where, instances = [{ role: 'mixed' }] } = options;
  if (attentionThreads === undefined) return [];
  const computing = instances.filter(({ role }) => role !== 'store');
  const equal = Math.max(1, Math.floor(options.threads / computing.length));
  const threads = Math.min(...computing.filter(({ role }) => role !== 'prefill').map((own) => own.threads ?? equal));
  const others = Math.max(0, threads - attentionThreads);
  return [
    [Array.isArray(where), 'attention workers at addresses have threads of their own: remove --attention-threads'],
    [
      attentionThreads < workers,
      `each of ${workers} attention workers needs a thread, and --attention-threads is ${attentionThreads}`,
    ],
    [
      others < modelWorkers,
      `--attention-threads ${attentionThreads} leaves ${others} of ${threads} threads for ${modelWorkers} model workers`,
    ],
  ];
}

/** @throws UsageError for an option that has no effect without attention workers */
function refuseWithoutWorkers(options: DopOptions): void {
  const { staggeredBatches, partition, attentionForm, attentionWorkers, attentionThreads } = options;
  const needs = 'it needs --dop MODEL,ATTENTION or --dop auto';
  if (staggeredBatches !== undefined)
    throw new UsageError('Cannot use --staggered-batches: it needs --dop or --attention-workers');
  if (attentionThreads !== undefined) throw new UsageError(`Cannot use --attention-threads: ${needs}`);
  if (partition !== 'heads') throw new UsageError(`Cannot use --partition ${partition}: ${needs}`);
  if (attentionForm !== 'ranges') throw new UsageError(`Cannot use --attention-form ${attentionForm}: ${needs}`);
  if (attentionWorkers !== undefined)
    throw new UsageError(`Cannot use --attention-workers ${attentionWorkers}: ${needs}`);
}

/** True for one decode instance, which has the attention workers, and prefill instances. */
function isPrefillBeside(instances: readonly InstanceOptions[]): boolean {
  const others = instances.filter(({ role }) => role !== 'prefill');
  return others.length === 1 && others[0].role === 'decode';
}

interface GivenInstance {
  readonly role?: unknown;
}

/**
 * Options in which a list of instances with these roles is one instance with `--dop`, beside the other instances.
 * @param flags with the name of the config file @throws UsageError that names the field
 */
export function withWorkerRoles(flags: Record<string, unknown>): Record<string, unknown> {
  const { instances: all, ...given } = givenOptions(flags);
  if (!Array.isArray(all)) return flags;
  const instances = all.filter((each): each is GivenInstance => typeof each === 'object' && each !== null);
  const models = instances.filter(({ role }) => role === 'model');
  const workers = instances.filter(({ role }) => role === 'attention');
  if (models.length + workers.length === 0) return flags;
  const others = instances.filter((each) => !models.includes(each) && !workers.includes(each));
  refuseRoles(models, workers, given);
  const role = others.length > 0 ? 'decode' : 'mixed';
  return {
    ...flags,
    instances: [...others, { ...models[0], role }],
    dop: `1,${workers.length}`,
    attentionWorkers: 'processes',
  };
}

function refuseRoles(
  models: readonly GivenInstance[],
  workers: readonly GivenInstance[],
  given: Readonly<Record<string, unknown>>,
): void {
  const refuse = (field: string, why: string): never => {
    throw new UsageError(`Cannot use ${field}: ${why}`);
  };
  if (models.length === 0) refuse('instances', 'role attention needs one instance with role model');
  if (workers.length === 0) refuse('instances', 'role model needs instances with role attention');
  if (models.length > 1)
    refuse(
      'instances',
      `${models.length} have role model, and one is supported: dop: ${models.length},${workers.length} has replicas`,
    );
  for (const name of ['dop', 'attentionWorkers'])
    if (given[name] !== undefined) refuse(toFlag(name), 'the roles model and attention of instances state it');
  const [own] = workers.flatMap((worker) => Object.keys(worker).filter((name) => name !== 'role'));
  if (own !== undefined)
    refuse(
      `instances.${toFlag(own)}`,
      'attention workers share --threads and --kv-memory equally: remove it from role attention',
    );
}

/** Options of `join --role attention`. */
export interface AttentionWorkerOptions extends ModelOptions {
  readonly shard: { readonly index: number; readonly workers: number };
  readonly pagesHost: string;
  readonly pagesPort: number;
  readonly token: string;
  readonly transport: ProcessTransport;
}

/** The options of `join` that an attention worker has. */
const workerOptionNames: ReadonlySet<string> = new Set([
  ...['role', 'shard', 'model', 'weights', 'inputs', 'kvType', 'context', 'threads', 'kvMemory'],
  ...['pagesHost', 'pagesPort', 'transport', 'token'],
]);

/** @throws UsageError if an option is missing, or has no effect in this role */
export function attentionWorkerOptions(options: JoinOptions, given: Record<string, unknown>): AttentionWorkerOptions {
  const wrong = Object.keys(given).find((name) => given[name] !== undefined && !workerOptionNames.has(name));
  const refuse = (why: string): never => {
    throw new UsageError(`Cannot use --role attention: ${why}`);
  };
  if (wrong !== undefined) refuse(`--${toFlag(wrong)} has no effect on an attention worker`);
  if (options.shard === undefined) return refuse('--shard I/N is missing, the shard of the KV heads, for example 1/2');
  if (options.token === undefined) return refuse('--token is missing, the secret that the model worker has as well');
  const { pagesHost = '127.0.0.1' } = options;
  return { ...options, shard: options.shard, token: options.token, pagesHost };
}
