// One simulated run from options, for `kvasir simulate`, `kvasir plan` and `kvasir sweep`.
import { setFlagsFromString } from 'node:v8';
import { type Command, Option } from 'commander';
import { z } from 'zod';
import {
  balancingThresholdDefault,
  type PlacementKind,
  placementKinds,
} from '../../core/router/placement/placement.ts';
import { ExternalEngines } from '../../sim/engine/external-engines.ts';
import { type InstanceSpec, Simulation, type SimulationConfig } from '../../sim/engine/simulation.ts';
import type { Racks } from '../../sim/network/network.ts';
import { lendingReport } from '../../sim/report/lending-report.ts';
import type { InstanceWork } from '../../sim/report/outcome.ts';
import { BlockUses } from '../../trace/future-uses.ts';
import type { Labels } from '../../trace/labels.ts';
import { presetNames } from '../../trace/workload/presets.ts';
import { scramble } from '../../util/scramble.ts';
import {
  addBorrowFlags,
  borrowFields,
  remoteAttentionField,
  remoteAttentionFlag,
  withBorrowing,
} from '../options/borrow-options.ts';
import {
  bytesOf,
  clusterFields,
  instanceNames,
  instanceSpecs,
  pipelineSettings,
  pricePerHourOf,
} from '../options/cluster-options.ts';
import { addFaultFlags, faultFields, faultPlan } from '../options/fault-options.ts';
import { toFlag } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import {
  addSloFlags,
  admissionSettings,
  copyHotPrefixesFlag,
  labelsOf,
  retrySettings,
  sloFields,
} from '../options/slo-options.ts';
import { withStandby } from '../options/standby-options.ts';
import {
  addTransformFlags,
  addWorkloadFlags,
  timeUnit,
  timeUnitFlag,
  transformFields,
  turnTimes,
  workloadFields,
} from '../options/workload-options.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { addGatewayFlags, gatewayFields, gatewaySettings } from './gateway-options.ts';
import { outputFields, RunOutputs, withoutOutputs } from './outputs/run-outputs.ts';
import { readPolicies, withPolicies } from './policy-file.ts';
import { type RunFigures, reportOf } from './run-figures.ts';
import { refuseWithAttentionWorkers } from './simulated-attention-workers.ts';
import { refuseWithSparsity } from './simulated-sparsity.ts';
import type { TracePiece } from './trace-file.ts';
import { openWorkload } from './workload-source.ts';

const count = (least: number) => numeric(z.number().int().min(least));

/** '8', or '1,8,16'. */
const clientCounts = z
  .union([z.array(z.number()), z.number(), z.string()])
  .transform((given) => (typeof given === 'string' ? given.split(',').map(Number) : [given].flat()))
  .refine((counts) => counts.every((n) => Number.isInteger(n) && n > 0), 'write 8, or 1,8,16');

export const simulationSchema = z.object({
  trace: z.string().optional(),
  workload: z.string().optional(),
  timeUnit,
  ...workloadFields,
  ...transformFields,
  ...clusterFields,
  ...borrowFields,
  ...sloFields,
  ...faultFields,
  ...gatewayFields,
  clients: clientCounts.optional(),
  clientsPlot: z.string().optional(),
  turnTimes: z.enum(turnTimes).optional(),
  placement: z.enum(placementKinds).optional(),
  policy: z.string().optional(),
  balancingThreshold: numeric(z.number().min(1)).default(balancingThresholdDefault),
  copyHotPrefixes: z.boolean().default(false),
  remoteAttention: remoteAttentionField,
  queue: count(1).default(1_000_000),
  findRate: numeric(z.number().positive().max(1)).optional(),
  check: z.boolean().default(false),
  chaos: z.boolean().default(false),
  seeds: count(1).optional(),
  ...outputFields,
});

export type SimulationOptions = z.infer<typeof simulationSchema>;

/** Drops defaults: commander sets a `--no-...` flag that is not given to `true`, which would override the config file. */
export function givenFlags(flags: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const given = Object.entries(flags).filter(([name, value]) => value !== true || !negatable.includes(name));
  return Object.fromEntries(given);
}

const negatable = ['coalesce', 'stream', 'settle', 'borrowAhead'];

/** Flags of workload, placement, SLOs, faults and lending, without those of the cluster. */
export function addRunFlags(command: Command): Command {
  command
    .optionsGroup(groups.workload)
    .option(
      '--trace <file>',
      'Replay this trace: Mooncake or Bailian JSON lines, or CSV of Azure, BurstGPT or Vidur; plain or gzip',
    )
    .addOption(timeUnitFlag())
    .option('--workload <name>', `Generate a synthetic workload instead: ${presetNames.join(', ')}`)
    .addOption(
      new Option(
        '--turn-times <kind>',
        'Send the next turn of a session after its estimated (50 ms a token) or simulated answer (default: estimated, with --clients simulated)',
      ).choices(turnTimes),
    )
    .optionsGroup(groups.scheduling)
    .addOption(
      new Option(
        '--placement <policy>',
        'Select the instance of a request by this policy (default: cache-aware, with --dop local-cache-only)',
      ).choices(placementKinds),
    )
    .option('--policy <file>', 'Evict, place, admit or batch by the functions of this module (see kvasir/policy)')
    .option(
      '--balancing-threshold <x>',
      'Fetch a prefix from another instance if it is this many times as long as the local one (default: 1.5)',
    )
    .addOption(copyHotPrefixesFlag())
    .option('--queue <n>', 'Accept at most this number of requests at once in the cluster (default: 1000000)');
  command.optionsGroup(groups.lending).addOption(remoteAttentionFlag());
  return addBorrowFlags(addTransformFlags(addWorkloadFlags(addFaultFlags(addGatewayFlags(addSloFlags(command))))));
}

/** The object of `--json`. */
export type Report = ReturnType<typeof reportOf> & RunFigures;

/** True if requests have SLOs. @param settings of the run */
export function hasSlo({ ttftSlo, tbtSlo, sloClasses }: Report['settings']): boolean {
  return (ttftSlo ?? tbtSlo ?? sloClasses) !== undefined;
}

/** All figures of a run. */
export function completeReport(
  { outcome, lending, cluster, messageCounts }: Simulation,
  options: SimulationOptions,
  wallSeconds: number,
): Report {
  return {
    ...reportOf(outcome, wallSeconds),
    ...(options.decodeOnly ? { prefillTokens: 0 } : {}),
    settings: givenSettings(options),
    instances: namedInstances(outcome.instances, options),
    seed: options.seed,
    pricePerHour: pricePerHourOf(options),
    ...(lending === undefined ? {} : { lending: lendingReport(lending, outcome) }),
    ...(cluster.faults && {
      faults: Object.fromEntries(cluster.faults.injected),
      handlers: Object.fromEntries(messageCounts.counts),
    }),
  };
}

/** @throws UsageError */
function racksOf(
  { rack, rackGbps, rackUs = 0 }: SimulationOptions,
  [first]: readonly InstanceSpec[],
): Racks | undefined {
  if (rack === undefined) {
    const flag = rackGbps !== undefined ? '--rack-gbps' : rackUs > 0 && '--rack-us';
    if (flag !== false) throw new UsageError(`Cannot use ${flag}: it needs --rack`);
    return undefined;
  }
  const bytesPerSecond = rackGbps === undefined ? first.nic.bytesPerSecond : bytesOf(rackGbps);
  return { instances: rack, bytesPerSecond, us: rackUs };
}

/** The options that have a value. */
function givenSettings(options: SimulationOptions): Readonly<Record<string, unknown>> {
  return Object.fromEntries(Object.entries(withoutOutputs(options)).filter(([, value]) => value !== undefined));
}

/** The work of each instance under its name. */
function namedInstances(works: readonly InstanceWork[], options: SimulationOptions) {
  const names = instanceNames(instanceSpecs(options, admissionSettings(options).kind !== 'none'));
  return works.map((work, i) => ({ name: names[i], ...work }));
}

/** Runs without outputs or progress. */
export async function reportOfRun(options: SimulationOptions): Promise<Report> {
  const started = performance.now();
  const simulation = await runSimulation(withoutOutputs(options), false);
  return completeReport(simulation, options, (performance.now() - started) / 1000);
}

/** From this number of instances on V8 collects garbage when its heap has grown by 40 %; else it may grow to four times its size. */
const largeCluster = 100;

/** Runs from the first request until no event is left. @param showsProgress on stderr @throws UsageError */
export async function runSimulation(options: SimulationOptions, showsProgress = true): Promise<Simulation> {
  const workload = openWorkload(options);
  const admission = admissionSettings(options);
  const instances = instanceSpecs(options, admission.kind !== 'none');
  if (instances.length >= largeCluster) setFlagsFromString('--heap-growing-percent=40');
  const pipeline = pipelineSettings(options);
  refuseWithAttentionWorkers(options);
  refuseWithSparsity(options);
  const policies = options.policy === undefined ? undefined : await readPolicies(options.policy);
  const futureUses = policies?.needsNextUses === true ? await futureUsesOf(options) : undefined;
  const outputs = await RunOutputs.open(options, instanceNames(instances), showsProgress);
  const isClosedLoop = options.clients !== undefined;
  const create = (listeners: RunOutputs['listeners']): Simulation => {
    const config: SimulationConfig = {
      ...withBorrowing(options, withStandby(options, instances)),
      linkBytesPerSecond: options.linkGbps === undefined ? undefined : bytesOf(options.linkGbps),
      racks: racksOf(options, instances),
      blockTokens: options.blockTokens,
      queueMax: options.queue,
      gateways: gatewaySettings(options),
      placement: {
        kind: placementOf(options),
        seed: [options.seed, 1],
        balancingThreshold: options.balancingThreshold,
        copiesHotPrefixes: options.copyHotPrefixes,
      },
      admission,
      clients: clientsOf(options),
      clientPauses: pausesOf(options),
      retries: retrySettings(options),
      pipeline,
      faults: faultPlan(options, instances.length),
      checking: options.check,
      ...externalEngines(options, instances.length),
      ...listeners,
    };
    return new Simulation(policies === undefined ? config : withPolicies(config, policies, futureUses));
  };
  return runRequests(labelled(workload, labelsOf(options)), outputs, create, isClosedLoop);
}

/** From the conductor to an engine, and back: what placing and sending a request takes (docs/internals/fleet.md). */
const engineDelayUs = 500;

/** @throws UsageError */
function externalEngines(options: SimulationOptions, engines: number): Pick<SimulationConfig, 'external' | 'threads'> {
  if (options.fleet === undefined) return {};
  const { borrow, roleSwitch, faults, check, batchRate } = options;
  const given = { borrow, roleSwitch, faults: faults.length > 0, check, batchRate: batchRate !== undefined };
  const wrong = Object.entries(given).find(([, isGiven]) => isGiven);
  if (wrong !== undefined)
    throw new UsageError(`Cannot use --${toFlag(wrong[0])} with --fleet: external engines have none`);
  return {
    external: new ExternalEngines(engines),
    threads: { toInstanceUs: () => engineDelayUs, receivedUs: (nowUs) => nowUs + engineDelayUs },
  };
}

/** Reads the workload once for the times at which prompts use blocks. @throws UsageError in a closed loop */
async function futureUsesOf(options: SimulationOptions): Promise<BlockUses> {
  const flag =
    options.clients === undefined ? options.turnTimes === 'simulated' && '--turn-times simulated' : '--clients';
  if (flag !== false)
    throw new UsageError(
      `Cannot use --policy ${options.policy} with ${flag}: its eviction needs the arrivals, which follow from the run`,
    );
  const uses = new BlockUses();
  for await (const { requests } of openWorkload(options))
    for (const { blocks, arrivalUs } of requests) for (const id of blocks) uses.add(scramble(id) >>> 0, arrivalUs);
  return uses;
}

/** Options that state when requests arrive; in a closed loop they arrive when others end. */
const arrivalOptions = ['rate', 'arrivals', 'on', 'off', 'batchRate', 'findRate'] as const;

/** Clients of a closed loop. @throws UsageError */
function clientsOf(options: SimulationOptions): number | undefined {
  const { clients } = options;
  if (clients === undefined) return undefined;
  const flag =
    arrivalOptions.find((name) => options[name] !== undefined) ?? (options.speed === 1 ? undefined : 'speed');
  if (flag !== undefined)
    throw new UsageError(`Cannot use --${toFlag(flag)} with --clients: each client sends when its last request ends`);
  if (clients.length > 1) throw new UsageError(`Cannot use --clients ${clients.join(',')} here: state one number`);
  return clients[0];
}

/** Pauses of a client between two requests, or between two sessions. */
export function pausesOf({ think = 0, thinkTimes: kind = 'exponential', seed }: SimulationOptions) {
  return think === 0 ? undefined : { meanUs: think * 1e6, kind, seed };
}

/** Instances do not fetch prefixes from the attention workers of others. */
function placementOf({ placement, dop }: SimulationOptions): PlacementKind {
  return placement ?? (dop === undefined ? 'cache-aware' : 'local-cache-only');
}

/** Events between two progress updates, after the last arrival. */
const eventsPerUpdate = 10_000;

async function* labelled(workload: AsyncIterable<TracePiece>, labels: Labels): AsyncGenerator<TracePiece, void> {
  for await (const piece of workload)
    yield { ...piece, requests: piece.requests.map((request) => labels.take(request)) };
}

/** Runs the workload to its end and writes the outputs. @param isClosedLoop requests arrive when others end */
export async function runRequests(
  workload: AsyncIterable<TracePiece> | Iterable<TracePiece>,
  outputs: RunOutputs,
  create: (listeners: RunOutputs['listeners']) => Simulation,
  isClosedLoop = false,
): Promise<Simulation> {
  const simulation = create(outputs.listeners);
  const recorder = outputs.recorderOf(simulation);
  for await (const { requests, share } of workload) {
    for (const request of requests) {
      recorder?.advance(isClosedLoop ? simulation.nowUs : request.arrivalUs);
      simulation.arrive(request);
    }
    await outputs.progressed(share, simulation);
  }
  while (!simulation.isOver) {
    for (let i = 0; i < eventsPerUpdate && !simulation.isOver; i++) {
      recorder?.advance(simulation.nextUs);
      simulation.advance(simulation.nextUs);
    }
    await outputs.progressed(1, simulation);
  }
  simulation.finish();
  await outputs.close(simulation);
  return simulation;
}
