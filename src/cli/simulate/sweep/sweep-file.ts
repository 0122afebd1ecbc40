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
  if (!parsed.success) throw unreadable(path, [], parsed.error);
  const { base, grid, seeds } = parsed.data;
  const entries = Object.entries(grid).map(([name, values]) =>
    values.map((value, i) => choiceOf(path, name, value, i)),
  );
  checkBesides(path, entries);
  const points = combinationsOf(entries).flatMap((combination, index) => {
    const flags = { ...flagsOf(base), ...flagsOfAll(combination) };
    const settings = Object.fromEntries(combination.map(({ name, shown }) => [name, shown]));
    return Array.from({ length: seeds }, (_, i) => pointOf(path, { index, settings, flags }, i));
  });
  return { columns: Object.keys(grid), points };
}

function unreadable(path: string, place: readonly string[], { issues: [first] }: z.core.$ZodError): UsageError {
  const whole = [...place, ...(first?.path ?? [])].map(String);
  return new UsageError(`Cannot read ${path}: ${whole.length === 0 ? '' : `${whole.join('.')}: `}${first?.message}`);
}

/** @throws UsageError for flags beside a choice that no other entry of the grid has */
function checkBesides(path: string, entries: readonly (readonly GridChoice[])[]): void {
  for (const choices of entries) {
    const others = entries.filter((entry) => entry !== choices).flatMap((entry) => entry.map(({ shown }) => shown));
    for (const { name, shown, beside } of choices) {
      const unknown = Object.keys(beside).find((key) => !others.includes(key));
      if (unknown === undefined) continue;
      throw new UsageError(
        `Cannot read ${path}: grid.${name}.${shown}.by: no other entry of the grid has a choice '${unknown}'`,
      );
    }
  }
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

/** Every combination of one choice of each entry. */
function combinationsOf(entries: readonly (readonly GridChoice[])[]): readonly (readonly GridChoice[])[] {
  return entries.reduce<readonly (readonly GridChoice[])[]>(
    (combinations, choices) => combinations.flatMap((chosen) => choices.map((choice) => [...chosen, choice])),
    [[]],
  );
}

/**
 * A mapping sets several flags together: its `name` is shown. Its `by` has further flags beside choices of these names.
 * @throws UsageError for a `by` that is no mapping of mappings
 */
function choiceOf(path: string, name: string, value: z.infer<typeof gridValue>, place: number): GridChoice {
  if (typeof value !== 'object') return { name, shown: String(value), flags: flagsOf({ [name]: value }), beside: {} };
  const { name: shown = place + 1, by = {}, ...flags } = value;
  const beside = besideSchema.safeParse(by);
  if (!beside.success) throw unreadable(path, ['grid', name, String(shown), 'by'], beside.error);
  return { name, shown: String(shown), flags: flagsOf(flags), beside: beside.data };
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
