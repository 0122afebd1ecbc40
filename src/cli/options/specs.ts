// Hardware and models by name, from the YAML files of `specs/` and from files of the user.
import { z } from 'zod';
import { assumedEfficiency } from '../../core/cost/roofline.ts';
import type { ModelShape } from '../../core/cost/shapes.ts';
import { packageFile } from '../package-root.ts';
import { UsageError } from '../usage-error.ts';
import { readYaml } from '../yaml-file.ts';

const positive = z.number().positive();
const whole = z.number().int().positive();

/** Assumed default start: a container and its process, then weights from object storage. */
const start = { seconds: 60, weightBytesPerSecond: 1e9 };

const share = z.number().gt(0).max(1);
const microseconds = z.number().min(0);

/** Each field that a hardware entry lacks has the value that is assumed of all hardware. */
const efficiencySchema = z.strictObject({
  compute: share.default(assumedEfficiency.compute),
  memory: share.default(assumedEfficiency.memory),
  link: share.default(assumedEfficiency.link),
  stepUs: microseconds.default(assumedEfficiency.stepUs),
  layerUs: microseconds.default(assumedEfficiency.layerUs),
  attentionCompute: share.optional(),
  attentionMemory: share.optional(),
  computeShard: z.number().min(0).optional(),
  memoryShard: z.number().min(0).optional(),
  sequenceUs: microseconds.optional(),
  reduceUs: microseconds.optional(),
});

const hardwareSchema = z.strictObject({
  devices: whole,
  memoryBytes: positive,
  memoryBytesPerSecond: positive,
  operationsPerSecond: z.strictObject({ bf16: positive, fp8: positive.optional() }),
  linkBytesPerSecond: positive,
  linkUs: z.number().min(0),
  hostMemoryBytes: positive,
  hostLinkBytesPerSecond: positive.optional(),
  ssd: z.strictObject({ bytes: positive, readBytesPerSecond: positive, writeBytesPerSecond: positive }).optional(),
  nicBytesPerSecond: positive,
  nicUs: z.number().min(0),
  pricePerHour: positive.optional(),
  start: z.strictObject({ seconds: z.number().min(0), weightBytesPerSecond: positive }).default(start),
  efficiency: efficiencySchema.default(assumedEfficiency),
});

const modelSchema = z.strictObject({
  layers: whole,
  hidden: whole,
  heads: whole,
  kvHeads: whole,
  headDim: whole,
  intermediate: whole,
  gated: z.boolean(),
  vocabulary: whole,
  tiedHead: z.boolean(),
  experts: z
    .strictObject({
      count: whole,
      active: whole,
      shared: z.number().int().min(0).default(0),
      intermediate: whole,
      denseLayers: z.number().int().min(0).default(0),
    })
    .refine(({ count, active }) => active <= count, 'active must be at most count')
    .optional(),
  latent: z.strictObject({ rank: whole, rotatedDim: whole, queryRank: whole.optional() }).optional(),
});

export type HardwareSpec = z.infer<typeof hardwareSchema>;

export function hardwareSpec(name: string, file?: string): HardwareSpec {
  return entryOf('hardware', hardwareSchema, name, file);
}

export function modelSpec(name: string, file?: string): ModelShape {
  return entryOf('models', modelSchema, name, file);
}

/** An entry of the file of the user, or else of the shipped file. @throws UsageError naming the field, or the known names */
function entryOf<T>(kind: 'hardware' | 'models', schema: z.ZodType<T>, name: string, file: string | undefined): T {
  const shipped = packageFile(`specs/${kind}.yaml`);
  const known: string[] = [];
  for (const path of file === undefined ? [shipped] : [file, shipped]) {
    const entries = readEntries(path);
    known.push(...Object.keys(entries));
    if (!Object.hasOwn(entries, name)) continue;
    const parsed = schema.safeParse(entries[name]);
    if (parsed.success) return parsed.data;
    const issue = parsed.error.issues[0];
    throw new UsageError(`Cannot read ${path}: ${[name, ...(issue?.path ?? [])].join('.')}: ${issue?.message}`);
  }
  throw new UsageError(`Cannot find ${name} among ${kind}: known are ${known.join(', ')}`);
}

/** Entries by file: a command reads many entries of the same file. */
const entriesOf = new Map<string, Readonly<Record<string, unknown>>>();

function readEntries(path: string): Readonly<Record<string, unknown>> {
  const known = entriesOf.get(path);
  if (known !== undefined) return known;
  let value: unknown;
  try {
    value = readYaml(path);
  } catch (error) {
    throw new UsageError(
      `Cannot read ${path}: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}`,
    );
  }
  if (typeof value !== 'object' || value === null) throw new UsageError(`Cannot read ${path}: no entries by name`);
  const entries = value as Readonly<Record<string, unknown>>;
  entriesOf.set(path, entries);
  return entries;
}
