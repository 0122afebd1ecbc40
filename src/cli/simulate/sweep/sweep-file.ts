// The file of `kvasir sweep`: flags of all runs, lists of values that are combined, and a number of seeds.
import { z } from 'zod';
import { inCamelCase, readOptions, toFlag } from '../../options/options.ts';
import { UsageError } from '../../usage-error.ts';
import { readYaml } from '../../yaml-file.ts';
import { type SimulationOptions, simulationSchema } from '../simulated-run.ts';

type Flags = Readonly<Record<string, unknown>>;

/** A value of a flag, or several flags under a name. */
const gridValue = z.union([z.string(), z.number(), z.boolean(), z.record(z.string(), z.unknown())]);

const fileSchema = z.strictObject({
  base: z.record(z.string(), z.unknown()).default({}),
  grid: z.record(z.string(), z.array(gridValue).min(1)).default({}),
  seeds: z.number().int().min(1).max(10_000).default(1),
  /** A table of `kvasir reproduce`. */
  figure: z.unknown().optional(),
});

export type SweepDefinition = z.input<typeof fileSchema>;

/** One run of a sweep. */
export interface SweepPoint {
  /** Position in the grid: equal for the seeds of a point. */
  readonly index: number;
  /** The value of each entry of the grid, by its name in the file. */
  readonly settings: Readonly<Record<string, string>>;
  readonly seed: number;
  readonly flags: Flags;
  readonly options: SimulationOptions;
}

export interface Sweep {
  /** Names of the entries of the grid. */
  readonly columns: readonly string[];
  /** In the order of the grid, the last entry first; the seeds of a point one after another. */
  readonly points: readonly SweepPoint[];
}

/** Flags that make no sense for a run of many, with the reason. */
const refused: Readonly<Record<string, string>> = {
  report: 'each run would write the same file',
  loadPlot: 'each run would write the same file',
  timeline: 'each run would write the same file',
  requestsOut: 'each run would write the same file',
  clientsPlot: 'each run would write the same file',
  chaos: 'it runs no workload',
  seeds: 'state `seeds` beside `base` and `grid`',
};

/** @throws UsageError */
export function readSweep(path: string): Sweep {
  let content: unknown;
  try {
    content = readYaml(path);
  } catch (error) {
    throw new UsageError(
      `Cannot read ${path}: ${error instanceof Error ? error.message.split('\n')[0] : 'unreadable'}`,
    );
  }
  return sweepOf(content, path);
}

/** @param content of the file @param path names the file in messages @throws UsageError */
export function sweepOf(content: unknown, path: string): Sweep {
  const parsed = fileSchema.safeParse(content);
  if (!parsed.success) {
    const [{ path: place, message }] = parsed.error.issues;
    throw new UsageError(`Cannot read ${path}: ${place.length === 0 ? '' : `${place.join('.')}: `}${message}`);
  }
  const { base, grid, seeds } = parsed.data;
  const points = combinationsOf(Object.entries(grid)).flatMap((combination, index) => {
    const flags = { ...flagsOf(base), ...flagsOfAll(combination) };
    const settings = Object.fromEntries(combination.map(({ name, shown }) => [name, shown]));
    return Array.from({ length: seeds }, (_, i) => pointOf(path, { index, settings, flags }, i));
  });
  return { columns: Object.keys(grid), points };
}

function pointOf(path: string, point: Pick<SweepPoint, 'index' | 'settings' | 'flags'>, added: number): SweepPoint {
  const { index, settings, flags } = point;
  for (const [name, why] of Object.entries(refused))
    if (flags[name] !== undefined) throw new UsageError(`Cannot use ${toFlag(name)} in ${path}: ${why}`);
  const first = readOptions(simulationSchema, { config: undefined, ...flags });
  const seed = first.seed + added;
  return { index, settings, seed, flags: { ...flags, seed }, options: { ...first, seed } };
}

interface GridChoice {
  readonly name: string;
  readonly shown: string;
  readonly flags: Flags;
  readonly beside: Readonly<Record<string, Flags>>;
}

/** Every choice of a value for each entry. */
function combinationsOf(
  entries: readonly (readonly [string, readonly z.infer<typeof gridValue>[]])[],
): readonly (readonly GridChoice[])[] {
  return entries.reduce<readonly (readonly GridChoice[])[]>(
    (combinations, [name, values]) =>
      combinations.flatMap((chosen) => values.map((value, place) => [...chosen, choiceOf(name, value, place)])),
    [[]],
  );
}

/** A mapping sets several flags together: its `name` is shown. Its `by` has further flags beside choices of these names. */
function choiceOf(name: string, value: z.infer<typeof gridValue>, place: number): GridChoice {
  if (typeof value !== 'object') return { name, shown: String(value), flags: flagsOf({ [name]: value }), beside: {} };
  const { name: shown = place + 1, by = {}, ...flags } = value;
  return { name, shown: String(shown), flags: flagsOf(flags), beside: besideSchema.parse(by) };
}

const besideSchema = z.record(z.string(), z.record(z.string(), z.unknown()));

/** Flags of later choices replace those of earlier ones. */
function flagsOfAll(combination: readonly GridChoice[]): Flags {
  const besides = combination.flatMap(({ beside }) => combination.map(({ shown }) => flagsOf(beside[shown] ?? {})));
  return Object.assign({}, ...combination.map(({ flags }) => flags), ...besides);
}

function flagsOf(given: Flags): Flags {
  return inCamelCase(given) as Flags;
}
