// Finds the cheapest cluster for a workload: candidate instances, their simulations, and the command that replays the winner.

import {
  cheapestOf,
  frontierOf,
  type SearchLimits,
  type Shape,
  searchPlans,
  type Trial,
  type TrialResult,
  type Unit,
} from '../../sim/report/plan-search.ts';
import { createCostModel } from '../options/cost-model.ts';
import { readOptions, toFlag } from '../options/options.ts';
import { hardwareSpec, modelSpec } from '../options/specs.ts';
import { percent } from '../terminal/fields.ts';
import { UsageError } from '../usage-error.ts';
import { withoutOutputs } from './outputs/run-outputs.ts';
import { type SimulationOptions, simulationSchema } from './simulated-run.ts';
import { searchAhead } from './sweep/search-ahead.ts';
import { SimulationThreads } from './sweep/simulation-threads.ts';

/** Unparsed flags of `kvasir simulate`. */
export type RawFlags = Readonly<Record<string, unknown>>;

interface PlanUnit extends Unit {
  readonly hardware: string;
  /** Devices that share each layer, and groups of them that share out the layers. */
  readonly tp: number;
  readonly pp: number;
  readonly feature: PlanFeature | undefined;
  /** Flags of the feature. */
  readonly flags: RawFlags;
}

/** What a cluster may use besides more instances; each is tried alone. */
export const planFeatures = ['borrow', 'cpp', 'tiers', 'store', 'copies', 'pp'] as const;
export type PlanFeature = (typeof planFeatures)[number];

type Latency = Readonly<Record<'mean' | 'p50' | 'p90' | 'p99', number>>;

interface Figures extends TrialResult {
  readonly ttftMs: Latency;
  readonly tbtMs: Latency;
}

const noLatency: Latency = { mean: 0, p50: 0, p90: 0, p99: 0 };

interface PlanInput {
  readonly unit: PlanUnit;
  readonly shape: Shape;
  readonly decodeUnit: PlanUnit;
}

export type PlanTrial = Trial<PlanUnit, Figures>;

export interface PlanSettings extends SearchLimits {
  readonly hardware: readonly string[];
  /** Undefined: none. */
  readonly features?: readonly PlanFeature[];
  /** Flags of `kvasir simulate` besides hardware and roles. */
  readonly flags: RawFlags;
}

/** Called before every simulation. */
export type PlanObserver = (tried: number, next: string) => void;

/** @throws UsageError if no hardware holds the model; Error if no cluster meets the share */
export async function planClusters(settings: PlanSettings, observer: PlanObserver) {
  const { units, leftOut } = unitsOf(settings);
  let started = 0;
  const threads = new SimulationThreads({ startsAtOnce: false });
  const run = async ({ unit, shape, decodeUnit }: PlanInput): Promise<Figures> => {
    const flags = flagsOf(settings.flags, unit, shape, decodeUnit);
    observer(started++, describe(unit, shape, decodeUnit));
    const { requests, withinSlo, ttftMs, tbtMs } = await threads.run(
      withoutOutputs(readOptions(simulationSchema, flags)),
    );
    if (requests === 0) throw new UsageError('Cannot plan: the workload has no request');
    return { share: withinSlo / requests, ttftMs, tbtMs };
  };
  const pairs = hardwarePairs(units.filter(({ feature }) => feature === undefined));
  const trials = await searchAhead<PlanInput, Figures, readonly PlanTrial[]>(
    (trial) => searchPlans(units, settings, (unit, shape, decodeUnit) => trial({ unit, shape, decodeUnit }), pairs),
    {
      run,
      keyOf: ({ unit, shape, decodeUnit }) => JSON.stringify([units.indexOf(unit), shape, units.indexOf(decodeUnit)]),
      guesses: [1, 0].map((share) => ({ share, ttftMs: noLatency, tbtMs: noLatency })),
      atOnce: threads.size,
    },
  ).finally(() => threads.close());
  const tried = trials.length;
  const winner = cheapestOf(trials, settings.within);
  if (winner === undefined) throw new Error(noPlanMessage(trials, settings));
  return { winner, command: commandOf(settings.flags, winner), frontier: frontierOf(trials), tried, leftOut };
}

function noPlanMessage(trials: readonly PlanTrial[], { within, instancesMax }: PlanSettings): string {
  const best = frontierOf(trials).at(-1);
  const most =
    best === undefined
      ? ''
      : `: ${describe(best.unit, best, best.decodeUnit)} has the highest share, ${percent(best.share)}`;
  return `Cannot keep ${percent(within)} of the requests within SLO with ${instancesMax} instances at most${most}`;
}

/** Candidate instances, and hardware that cannot be used, or not with some features, with the reason. */
function unitsOf({ hardware, flags, features = [] }: PlanSettings) {
  const options = readOptions(simulationSchema, flags);
  modelSpec(options.model, options.models);
  const leftOut: { hardware: string; why: string }[] = [];
  const units = hardware.flatMap((name) => {
    const { devices, pricePerHour } = hardwareSpec(name, options.machines);
    if (pricePerHour === undefined) throw new UsageError(`Cannot plan with ${name}: its entry has no pricePerHour`);
    const fitting = fittingTensorParallels(name, devices, options, (why) => leftOut.push({ hardware: name, why }));
    const plain = fitting.map((tp) => unitOf(name, tp, options.pp));
    const hasStages = flags.pp !== undefined || options.pp > 1;
    const staged = features.includes('pp') && !hasStages ? stagedUnits(name, devices, options) : [];
    const onSsd = features.filter((feature) => ssdFeatures.includes(feature));
    const lack = lackForSsd(name, options);
    if (plain.length > 0 && onSsd.length > 0 && lack !== undefined)
      leftOut.push({ hardware: name, why: `${lack} for --features ${onSsd.join(',')}` });
    const featured = plain.flatMap((unit) => features.flatMap((feature) => featuredUnits(unit, feature, options)));
    return [...plain, ...staged, ...featured].map((unit): PlanUnit => {
      const perMachine = devices / (unit.tp * unit.pp);
      const instancesPerMachine = perMachine < 1 ? perMachine : Math.floor(perMachine);
      return { ...unit, instancesPerMachine, pricePerHour };
    });
  });
  // Clusters without features first: the others are then tried only at their price or below.
  units.sort((a, b) => Number(a.feature !== undefined) - Number(b.feature !== undefined));
  const [first] = leftOut;
  if (units.length > 0 || first === undefined) return { units, leftOut };
  throw new UsageError(`Cannot plan ${options.model} on ${hardware.join(', ')}: ${first.hardware}: ${first.why}`);
}

type PlainUnit = Omit<PlanUnit, 'instancesPerMachine' | 'pricePerHour'>;

function unitOf(hardware: string, tp: number, pp: number): PlainUnit {
  return { hardware, tp, pp, feature: undefined, flags: {} };
}

/** Instances of two or four pipeline stages, on the devices that they divide. */
function stagedUnits(hardware: string, devices: number, options: SimulationOptions): readonly PlainUnit[] {
  return [2, 4]
    .filter((pp) => devices % pp === 0)
    .flatMap((pp) => {
      const fitting = fittingTensorParallels(hardware, devices, { ...options, pp }, () => {});
      return fitting.map((tp): PlainUnit => ({ ...unitOf(hardware, tp, pp), feature: 'pp' }));
    });
}

/** Members of a pipeline group. */
const groupSizes = [2, 4];

/** Features that cache blocks on SSDs. */
const ssdFeatures: readonly PlanFeature[] = ['tiers', 'store'];

/** What the hardware lacks to cache blocks on SSDs; undefined: nothing. */
function lackForSsd(hardware: string, { machines }: SimulationOptions): string | undefined {
  const { ssd, hostLinkBytesPerSecond } = hardwareSpec(hardware, machines);
  if (ssd === undefined) return 'no SSD';
  return hostLinkBytesPerSecond === undefined ? 'no hostLinkBytesPerSecond' : undefined;
}

/** The unit with a feature, unless the flags have it or the hardware lacks the memory for it. */
function featuredUnits(unit: PlainUnit, feature: PlanFeature, options: SimulationOptions): readonly PlainUnit[] {
  const { hardware, tp, pp } = unit;
  const { devices, pricePerHour, ssd } = hardwareSpec(hardware, options.machines);
  if (feature === 'borrow')
    return options.borrow ? [] : [{ ...unit, feature, flags: { borrow: true }, instancesMin: 2 }];
  if (feature === 'copies')
    return options.copyHotPrefixes ? [] : [{ ...unit, feature, flags: { copyHotPrefixes: true }, instancesMin: 2 }];
  if (feature === 'cpp')
    return options.cppGroup === undefined
      ? groupSizes.map((size) => ({ ...unit, feature, flags: { cppGroup: String(size) }, prefillMin: size }))
      : [];
  if (ssd === undefined || lackForSsd(hardware, options) !== undefined) return [];
  const { kvBytesPerToken } = createCostModel({ ...options, hardware, tp, pp });
  const blocksOn = (machines: number) =>
    String(Math.floor((ssd.bytes * machines) / (options.blockTokens * kvBytesPerToken)));
  if (feature === 'tiers')
    return options.ssdCacheBlocks === undefined
      ? [{ ...unit, feature, flags: { ssdCacheBlocks: blocksOn((tp * pp) / devices) } }]
      : [];
  if (feature === 'store' && options.store === 0 && pricePerHour !== undefined) {
    const flags = { store: '1', storeHardware: hardware, storeSsdBlocks: blocksOn(1) };
    return [{ ...unit, feature, flags, addedPricePerHour: pricePerHour }];
  }
  return [];
}

/** Pairs of different hardware for prefill and decode. */
function hardwarePairs(units: readonly PlanUnit[]): readonly (readonly [PlanUnit, PlanUnit])[] {
  return units.flatMap((unit) =>
    units.filter(({ hardware }) => hardware !== unit.hardware).map((other) => [unit, other] as const),
  );
}

/** Tensor-parallel sizes that hold the model: all devices, half of them, a quarter... */
function fittingTensorParallels(
  hardware: string,
  devices: number,
  options: SimulationOptions,
  onFailure: (why: string) => void,
): readonly number[] {
  const fitting: number[] = [];
  let failure: string | undefined;
  const candidates =
    options.tp === undefined ? halvingsOf(Math.max(1, Math.floor(devices / options.pp))) : [options.tp];
  for (const tp of candidates) {
    try {
      createCostModel({ ...options, hardware, tp });
    } catch (error) {
      if (!(error instanceof UsageError)) throw error;
      failure ??= error.message;
      continue;
    }
    fitting.push(tp);
  }
  if (fitting.length === 0 && failure !== undefined) onFailure(failure);
  return fitting;
}

/** The number, half of it, a quarter... while they are whole. */
function halvingsOf(devices: number): readonly number[] {
  return devices % 2 === 0 ? [devices, ...halvingsOf(devices / 2)] : [devices];
}

function flagsOf(
  flags: RawFlags,
  { hardware, tp, pp, feature, flags: featured }: PlanUnit,
  { prefill, decode, mixed }: Shape,
  decodeUnit: PlanUnit,
): RawFlags {
  const stages = feature === 'pp' ? { pp: String(pp) } : {};
  const own = { ...flags, ...featured, ...stages, hardware, tp: String(tp) };
  // The cluster of the config file is ignored.
  const none = (...roles: readonly string[]) =>
    flags.config === undefined ? {} : Object.fromEntries(roles.map((role) => [role, '0']));
  if (mixed > 0) return { ...own, ...none('prefill', 'decode'), mixed: String(mixed) };
  const disaggregated = { ...own, ...none('mixed'), prefill: String(prefill), decode: String(decode) };
  if (decodeUnit.hardware === hardware) return disaggregated;
  return { ...disaggregated, decodeHardware: decodeUnit.hardware, decodeTp: String(decodeUnit.tp) };
}

/** The command that replays a cluster. */
function commandOf(flags: RawFlags, trial: PlanTrial): string {
  const { config, ...others } = flagsOf(flags, trial.unit, trial, trial.decodeUnit);
  const words = Object.entries(others).flatMap(([name, value]) => {
    const flag = `--${toFlag(name)}`;
    if (value === true) return [flag];
    if (value === false) return [`--no-${toFlag(name)}`];
    return [flag, ...(Array.isArray(value) ? value : [value]).map((part) => quoted(String(part)))];
  });
  const experiment = config === undefined ? [] : [quoted(String(config))];
  return ['kvasir', 'simulate', ...experiment, ...words].join(' ');
}

/** Quotes a word for a shell. */
function quoted(word: string): string {
  return /^[\w./:=,+@%-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

function describe(unit: PlanUnit, { prefill, decode, mixed }: Shape, decodeUnit: PlanUnit): string {
  const of = ({ hardware, tp, pp, feature }: PlanUnit) => {
    const more = feature === undefined ? '' : feature === 'pp' ? `, pp ${pp}` : `, ${feature}`;
    return `of ${hardware} (tp ${tp}${more})`;
  };
  if (mixed > 0) return `${mixed} mixed ${of(unit)}`;
  if (decodeUnit === unit) return `${prefill} prefill + ${decode} decode ${of(unit)}`;
  return `${prefill} prefill ${of(unit)} + ${decode} decode ${of(decodeUnit)}`;
}
