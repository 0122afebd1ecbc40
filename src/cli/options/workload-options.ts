// Options of workloads: a trace file or a preset, and transformations.
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { type Command, Option } from 'commander';
import { z } from 'zod';
import { TraceError } from '../../trace/request.ts';
import { timeUnits } from '../../trace/time-unit.ts';
import { parseSpan, type Span } from '../../trace/transform.ts';
import type { Arrivals } from '../../trace/workload/arrivals.ts';
import { thinkTimes, type Workload } from '../../trace/workload/generator.ts';
import { parseLengthFile } from '../../trace/workload/length-file.ts';
import { type Lengths, type LengthTable, parseLengths } from '../../trace/workload/lengths.ts';
import { type PresetName, presetNames, presets } from '../../trace/workload/presets.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { fromText, numeric } from './schema-parts.ts';

const lengths = z.union([z.number(), z.string()]).transform((value, context): Lengths => {
  const parsed = parseLengths(String(value));
  if (parsed !== undefined) return parsed;
  context.addIssue({ code: 'custom', message: 'write 512, 100..900 or 8000~0.6 (mean and variation)' });
  return z.NEVER;
});

const span = z.string().transform((value, context): Span => {
  const parsed = parseSpan(value);
  if (parsed !== undefined) return parsed;
  context.addIssue({ code: 'custom', message: 'write 100..500 (requests) or 60s..5m (time)' });
  return z.NEVER;
});

/** A span of simulated time: '60s..5m'. */
export const timeSpan = span.refine(({ unit }) => unit === 'us', 'write 60s..5m');

/** Parses 'a:3,b:1'. */
function tenantsOf(text: string): unknown {
  return Object.fromEntries(text.split(',').map((part) => part.trim().split(':')));
}

const positive = numeric(z.number().positive());
const share = numeric(z.number().min(0).max(1));
const whole = (least: number, most = Number.MAX_SAFE_INTEGER) => numeric(z.number().int().min(least).max(most));

/** Options of a synthetic workload. */
export const workloadFields = {
  requests: whole(1).optional(),
  seed: whole(0, 2 ** 32 - 1).default(0),
  arrivals: z.enum(['poisson', 'constant', 'bursts']).optional(),
  rate: positive.optional(),
  on: positive.optional(),
  off: positive.optional(),
  input: lengths.optional(),
  output: lengths.optional(),
  lengths: z.string().optional(),
  long: share.optional(),
  longInput: lengths.optional(),
  families: whole(1, 2 ** 20).optional(),
  zipf: numeric(z.number().min(0).max(10)).optional(),
  shared: share.optional(),
  pinFamilies: whole(1).optional(),
  pinTtl: positive.optional(),
  turns: numeric(z.number().min(1)).optional(),
  newTokens: lengths.optional(),
  think: numeric(z.number().min(0)).optional(),
  thinkTimes: z.enum(thinkTimes).optional(),
  context: whole(2, 2 ** 31 - 1).optional(),
};

/** Options of transformations and batch jobs, for traces and synthetic workloads. */
export const transformFields = {
  batchRate: positive.optional(),
  batchInput: lengths.default({ kind: 'fixed', tokens: 1024 }),
  batchOutput: lengths.default({ kind: 'fixed', tokens: 512 }),
  slice: span.optional(),
  tile: whole(1).default(1),
  tileBlocks: z.enum(['fresh', 'same']).default('fresh'),
  speed: positive.default(1),
  tenants: fromText(tenantsOf)
    .pipe(z.record(z.string(), positive, 'write name:share,name:share'))
    .optional(),
};

const workloadSchema = z.object(workloadFields);
const transformSchema = z.object(transformFields);
export type WorkloadOptions = Readonly<z.infer<typeof workloadSchema>>;
export type TransformOptions = Readonly<z.infer<typeof transformSchema>>;

/** When the next turn of a session is sent: after an assumed answer time, or after the simulated answer. */
export const turnTimes = ['estimated', 'simulated'] as const;

/** Unit of the times in a trace. */
export const timeUnit = z.enum(timeUnits).optional();

export function timeUnitFlag(): Option {
  return new Option('--time-unit <unit>', 'Read the times of the trace in this unit (default: by its format)').choices(
    timeUnits,
  );
}

export function addWorkloadFlags(command: Command): Command {
  const kinds = ['poisson', 'constant', 'bursts'];
  return command
    .optionsGroup(groups.synthetic)
    .option('--requests <n>', 'Generate this number of requests (default: 1000)')
    .option('--seed <s>', 'Seed the random generator; equal seeds give equal workloads (default: 0)')
    .addOption(new Option('--arrivals <kind>', 'Draw arrivals from this process (default: poisson)').choices(kinds))
    .option('--rate <r>', 'Generate this mean number of requests per second (default: 1)')
    .option('--on <seconds>', 'Set the mean length of a burst (default: 10)')
    .option('--off <seconds>', 'Set the mean pause between bursts (default: 50)')
    .option(
      '--input <lengths>',
      'Set prompt tokens: 512, 100..900, or 8000~0.6 (log-normal: mean and deviation over mean)',
    )
    .option('--output <lengths>', 'Set output tokens, in the same notation')
    .option('--lengths <file>', 'Draw both lengths from a CSV of num_prefill_tokens,num_decode_tokens')
    .option('--long <share>', 'Give this share of requests a long prompt')
    .option('--long-input <lengths>', 'Set the tokens of long prompts (default: 50000..150000)')
    .option('--shared <share>', 'Share this part of a prompt within its prefix family (default: 0)')
    .option('--families <k>', 'Generate this number of prefix families (default: 64)')
    .option('--zipf <s>', 'Make the k-th family as popular as 1 / k^s (default: 1)')
    .option('--pin-families <k>', 'Pin the prefixes of this number of most popular families at the start')
    .option('--pin-ttl <seconds>', 'Pin prefixes for this time (default: 600)')
    .option('--turns <mean>', 'Set the mean number of requests of a session (default: 1)')
    .option('--new-tokens <lengths>', 'Add this number of tokens to the conversation in each turn (default: 330~1)')
    .option(
      '--think <seconds>',
      'Set the mean time from an answer to the next turn (default: 30), and to the next request of --clients (default: 0)',
    )
    .addOption(
      new Option('--think-times <kind>', 'Draw these times from this distribution (default: exponential)').choices(
        thinkTimes,
      ),
    )
    .option('--context <tokens>', 'Limit prompt and output of a request together (default: 131072)');
}

export function addTransformFlags(command: Command): Command {
  return command
    .optionsGroup(groups.transform)
    .option('--slice <span>', 'Use a part of the workload: 100..500 (requests) or 60s..5m (time)')
    .option('--tile <n>', 'Repeat the workload this number of times (default: 1)')
    .addOption(
      new Option('--tile-blocks <which>', 'Use fresh or the same blocks in each repetition (default: fresh)').choices([
        'fresh',
        'same',
      ]),
    )
    .option('--speed <x>', 'Multiply the arrival rate by this factor (default: 1)')
    .option('--tenants <list>', 'Assign requests without a tenant at random: name:share,name:share')
    .option('--batch-rate <r>', 'Add this number of batch jobs per second (default: 0)')
    .option('--batch-input <lengths>', 'Set the prompt tokens of batch jobs (default: 1024)')
    .option('--batch-output <lengths>', 'Set the output tokens of batch jobs (default: 512)');
}

/** The preset, changed by options. @throws UsageError for an invalid lengths file */
export function workloadOf(preset: PresetName, options: WorkloadOptions): Workload {
  const base: Workload = presets[preset];
  return {
    arrivals: arrivalsOf(base, options),
    lengths: lengthsOf(base, options),
    long: longOf(base, options),
    prefixes: prefixesOf(base, options),
    sessions: sessionsOf(base, options),
    phases: base.phases,
    contextTokens: options.context ?? base.contextTokens,
  };
}

/** Requests per second of a workload whose options state none. @param name undefined: the plain workload */
export function rateOf(name: string | undefined): number {
  return presets[presetOf(name ?? 'plain')].arrivals.requestsPerSecond;
}

export function presetOf(name: string): PresetName {
  const known = presetNames.find((preset) => preset === name);
  if (known === undefined) throw new UsageError(`Cannot find workload ${name}: known are ${presetNames.join(', ')}`);
  return known;
}

function arrivalsOf({ arrivals }: Workload, { arrivals: kind, rate, on = 10, off = 50 }: WorkloadOptions): Arrivals {
  const requestsPerSecond = rate ?? arrivals.requestsPerSecond;
  if (kind === 'bursts') return { kind, requestsPerSecond, onSeconds: on, offSeconds: off };
  return { ...arrivals, ...(kind === undefined ? {} : { kind }), requestsPerSecond };
}

function lengthsOf({ lengths }: Workload, { lengths: file, input, output }: WorkloadOptions): Workload['lengths'] {
  if (file !== undefined) {
    if (input === undefined && output === undefined) return readLengths(file);
    throw new UsageError('Cannot use --lengths with --input or --output: the file has both');
  }
  if (lengths.kind === 'table') return lengths;
  return { kind: 'drawn', input: input ?? lengths.input, output: output ?? lengths.output };
}

function readLengths(path: string): LengthTable {
  try {
    const bytes = readFileSync(path);
    const zipped = bytes[0] === 0x1f && bytes[1] === 0x8b;
    return parseLengthFile((zipped ? gunzipSync(bytes) : bytes).toString('utf8'));
  } catch (error) {
    if (error instanceof TraceError) throw new Error(error.message.replace('the trace', path), { cause: error });
    throw new Error(`Cannot read ${path}: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}`);
  }
}

function longOf({ long, lengths }: Workload, options: WorkloadOptions): Workload['long'] {
  const share = options.long ?? long?.share ?? 0;
  if (share === 0) return undefined;
  const output = options.output ?? long?.lengths.output ?? (lengths.kind === 'drawn' ? lengths.output : undefined);
  const input = options.longInput ?? long?.lengths.input ?? { kind: 'uniform', min: 50_000, max: 150_000 };
  return { share, lengths: { kind: 'drawn', input, output: output ?? { kind: 'fixed', tokens: 250 } } };
}

function prefixesOf({ prefixes }: Workload, options: WorkloadOptions): Workload['prefixes'] {
  const share = options.shared ?? prefixes?.share ?? 0;
  if (share === 0) return undefined;
  return {
    share,
    families: options.families ?? prefixes?.families ?? 64,
    zipf: options.zipf ?? prefixes?.zipf ?? 1,
  };
}

function sessionsOf({ sessions }: Workload, options: WorkloadOptions): Workload['sessions'] {
  const turns = options.turns ?? sessions?.turns ?? 1;
  if (turns === 1) return undefined;
  return {
    turns,
    newTokens: options.newTokens ?? sessions?.newTokens ?? { kind: 'log-normal', mean: 330, variation: 1 },
    thinkSeconds: options.think ?? sessions?.thinkSeconds ?? 30,
    thinkTimes: options.thinkTimes,
    answerMsPerToken: sessions?.answerMsPerToken ?? 50,
  };
}
