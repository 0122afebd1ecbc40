// Options of memory lending between instances, and the lending configuration of a simulated cluster.
import { type Command, Option } from 'commander';
import { z } from 'zod';
import { queryRowBytes } from '../../core/cost/dist-attention.ts';
import { blocksLendable } from '../../core/lending/lending-policy.ts';
import type { InstanceSpec, SimulationConfig } from '../../sim/engine/simulation.ts';
import { rangeTokens } from '../../util/step.ts';
import { groups, olderName } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import {
  type BorrowOptions,
  type LendingRules,
  policyOf,
  settlementOf,
  stagingBlocksOf,
  timesOf,
  withHostMemory,
} from './lending-rules.ts';
import { numeric } from './schema-parts.ts';
import { modelSpec } from './specs.ts';

const share = numeric(z.number().min(0).max(1));
const positive = numeric(z.number().positive());

export const remoteAttentionField = z.enum(['auto', 'dist', 'ring']).optional();

export const borrowFields = {
  borrow: z.boolean().default(false),
  lendShare: share.default(0.5),
  lowWater: share.default(0.02),
  remoteAttentionShare: numeric(z.number().min(0.01).max(0.9)).default(0.3),
  lookAheadMs: positive.default(1000),
  leaseMs: positive.default(2000),
  borrowAhead: z.boolean().default(true),
  settle: z.boolean().default(true),
  settleMs: positive.default(500),
  settleMin: numeric(z.number().int().min(1)).default(rangeTokens),
  remoteCacheMs: numeric(z.number().min(0)).default(60_000),
};

const liveLeaseMs = 10_000;
/** Leases of live instances are longer: a thread receives no messages during a step. */
export const liveBorrowFields = {
  ...borrowFields,
  leaseMs: positive.default(liveLeaseMs),
  lendHost: share.default(0),
  remoteAttention: remoteAttentionField,
};

interface LiveOptions extends BorrowOptions {
  readonly lendHost: number;
  readonly hostMemory?: number | undefined;
}

export function addLiveBorrowFlags(command: Command): Command {
  return addBorrowFlags(command, liveLeaseMs)
    .addOption(remoteAttentionFlag())
    .option(
      '--lend-host <share>',
      'Use this share of --host-memory for blocks of sequences, both local and borrowed (default: 0)',
    );
}

/** Drops defaults: commander sets a `--no-...` flag that is not given to `true`. */
export function withoutDefaults(given: Record<string, unknown>): Record<string, unknown> {
  const { settle, borrowAhead, warmUp, ...flags } = given;
  const negated = Object.entries({ settle, borrowAhead, warmUp }).filter(([, value]) => value === false);
  return { ...flags, ...Object.fromEntries(negated) };
}

/** Lending rules of served instances. @throws UsageError if they cannot borrow from one another */
export function servedLending(
  options: LiveOptions & {
    readonly instances?: readonly { readonly role: string; readonly hostMemory?: number | undefined }[] | undefined;
  },
): LendingRules | undefined {
  if (!options.borrow) return undefined;
  const lenders = options.instances?.filter(({ role }) => role !== 'store') ?? [];
  if (lenders.length < 2) throw new UsageError('Cannot use --borrow: it needs at least two --instances that compute');
  const [most] = lenders.flatMap(({ hostMemory }) => hostMemory ?? []).sort((a, b) => b - a);
  return lendingRules({ ...options, hostMemory: options.hostMemory ?? most });
}

/** Lending rules of a joining instance; undefined without --borrow. */
export function joinedLending(options: LiveOptions): LendingRules | undefined {
  return options.borrow ? lendingRules(options) : undefined;
}

function lendingRules(options: LiveOptions): LendingRules {
  if (options.lendHost > 0 && options.hostMemory === undefined)
    throw new UsageError('Cannot use --lend-host: it needs --host-memory');
  return withHostMemory(options, options.hostMemory);
}

export function remoteAttentionFlag(): Option {
  return new Option(
    '--remote-attention <kind>',
    'Attention over borrowed KV: send queries to the creditor (dist), fetch its keys and values in every step (ring), or choose for each step by predicted time and bytes (auto) (default: dist)',
  ).choices(['auto', 'dist', 'ring']);
}

export function addBorrowFlags(command: Command, leaseMs = 2000): Command {
  return command
    .optionsGroup(groups.lending)
    .option('--borrow', 'Let instances borrow KV memory from one another')
    .option('--lend-share <share>', 'Lend at most this share of the KV memory of an instance (default: 0.5)')
    .option(
      '--low-water <share>',
      'Borrow when less than this share of the KV memory is free, and never lend this share (default: 0.02)',
    )
    .option(
      '--remote-attention-share <share>',
      'Spend at most this share of a step of a busy creditor on remote attention for its debtors (default: 0.3)',
    )
    .addOption(olderName('--guest-share <share>'))
    .option('--look-ahead-ms <ms>', 'Forecast the growth of sequences over this time (default: 1000)')
    .option('--lease-ms <ms>', `Reclaim a loan that is not renewed within this time (default: ${leaseMs})`)
    .option(
      '--remote-cache-ms <ms>',
      'Keep the remote blocks of a finished request as cache for this time; 0 frees them at once (default: 60000)',
    )
    .addOption(olderName('--spread-ms <ms>'))
    .option('--no-borrow-ahead', 'Borrow only when the KV memory is full')
    .option('--no-settle', 'Do not settle cycles of debts by exchanging blocks (DGFM)')
    .option('--settle-ms <ms>', 'Search for cycles of debts at this interval (default: 500)')
    .option(
      '--settle-min <tokens>',
      `Settle cycles whose smallest debt has this number of tokens (default: ${rangeTokens})`,
    );
}

export function withBorrowing(
  options: BorrowOptions & {
    readonly lendHost: number;
    readonly model: string;
    readonly models?: string | undefined;
    readonly seed: number;
  },
  instances: readonly InstanceSpec[],
): Pick<SimulationConfig, 'instances' | 'lending'> {
  if (!options.borrow && options.lendHost > 0)
    throw new UsageError(`Cannot use --lend-host ${options.lendHost}: it needs --borrow`);
  if (!options.borrow) return { instances, lending: undefined };
  const times = timesOf(options);
  const lenders = instances.filter(({ role }) => role !== 'store');
  const pools = lenders.map(
    ({ machine }) => machine.blocks ?? Math.floor(machine.cost.kvCapacityTokens / machine.blockTokens),
  );
  const units = lenders.map(({ machine }) => Math.max(1, Math.ceil(rangeTokens / machine.blockTokens)));
  const policies = pools.map((blocks, i) => ({ ...policyOf(blocks, options), unitBlocks: units[i] }));
  const lendable = pools.map((total, i) => blocksLendable({ total, available: total, lent: 0 }, policies[i]));
  const all = lendable.reduce((sum, blocks) => sum + blocks, 0);
  const hosts = lenders.map(({ hostMemory }) => hostMemory?.blocks ?? 0);
  const lendableHosts = hosts.map((total, i) => blocksLendable({ total, available: total, lent: 0 }, policies[i]));
  const allHosts = lendableHosts.reduce((sum, blocks) => sum + blocks, 0);
  const specs = lenders.map((spec, instance) => ({
    ...spec,
    machine: {
      ...spec.machine,
      borrowing: {
        instance,
        policy: policies[instance],
        times,
        stagingBlocks: stagingBlocksOf(pools[instance], units[instance]),
        hostBlocks: hosts[instance],
        borrowableBlocks: all - lendable[instance] + allHosts - lendableHosts[instance] + hosts[instance],
        rangeBlocks: units[instance],
      },
    },
  }));
  const { layers, heads, headDim } = modelSpec(options.model, options.models);
  const settlement = settlementOf(options, lenders[0].machine.blockTokens);
  const lending = {
    times,
    settles: options.settle,
    ...{ settleBlocksMin: settlement.blocksMin, rangeBlocks: settlement.rangeBlocks },
    seed: options.seed,
    remoteAttentionPermilleMax: Math.round(options.remoteAttentionShare * 1000),
    queryRowBytes: queryRowBytes({ layers, heads, headDim }),
    ...{ layers, remoteAttention: options.remoteAttention },
    hostTokenUs: instances.map(({ hostMemory }) => hostMemory?.tokenUs ?? 0),
  };
  // Stores are the last instances.
  return { instances: [...specs, ...instances.filter(({ role }) => role === 'store')], lending };
}
