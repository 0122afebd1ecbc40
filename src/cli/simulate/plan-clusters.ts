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
  /** Devices that share each layer. */
  readonly tp: number;
}

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
  const pairs = hardwarePairs(units);
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

/** Candidate instances, and unusable hardware with the reason. */
function unitsOf({ hardware, flags }: PlanSettings) {
  const options = readOptions(simulationSchema, flags);
  modelSpec(options.model, options.models);
  const leftOut: { hardware: string; why: string }[] = [];
  const units = hardware.flatMap((name) => {
    const { devices, pricePerHour } = hardwareSpec(name, options.machines);
    if (pricePerHour === undefined) throw new UsageError(`Cannot plan with ${name}: its entry has no pricePerHour`);
    const fitting = fittingTensorParallels(name, devices, options, (why) => leftOut.push({ hardware: name, why }));
    return fitting.map((tp): PlanUnit => {
      const perMachine = devices / (tp * options.pp);
      const instancesPerMachine = perMachine < 1 ? perMachine : Math.floor(perMachine);
      return { hardware: name, tp, instancesPerMachine, pricePerHour };
    });
  });
  const [first] = leftOut;
  if (units.length > 0 || first === undefined) return { units, leftOut };
  throw new UsageError(`Cannot plan ${options.model} on ${hardware.join(', ')}: ${first.hardware}: ${first.why}`);
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
  { hardware, tp }: PlanUnit,
  { prefill, decode, mixed }: Shape,
  decodeUnit: PlanUnit,
): RawFlags {
  const own = { ...flags, hardware, tp: String(tp) };
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
  const of = ({ hardware, tp }: PlanUnit) => `of ${hardware} (tp ${tp})`;
  if (mixed > 0) return `${mixed} mixed ${of(unit)}`;
  if (decodeUnit === unit) return `${prefill} prefill + ${decode} decode ${of(unit)}`;
  return `${prefill} prefill ${of(unit)} + ${decode} decode ${of(decodeUnit)}`;
}
