// A workload from flags: a trace file or a preset, and what changes in it.
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { type Command, Option } from 'commander';
import { z } from 'zod';
import { TraceError } from '../../trace/request.ts';
import { parseSpan, type Span } from '../../trace/transform.ts';
import type { Arrivals } from '../../trace/workload/arrivals.ts';
import type { Workload } from '../../trace/workload/generator.ts';
import { parseLengthFile } from '../../trace/workload/length-file.ts';
import { type Lengths, type LengthTable, parseLengths } from '../../trace/workload/lengths.ts';
import { type PresetName, presetNames, presets } from '../../trace/workload/presets.ts';
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

/** '60s..5m', simulated. */
export const timeSpan = span.refine(({ unit }) => unit === 'us', 'write 60s..5m');

/** 'a:3,b:1'. */
function tenantsOf(text: string): unknown {
  return Object.fromEntries(text.split(',').map((part) => part.trim().split(':')));
}

const positive = numeric(z.number().positive());
const share = numeric(z.number().min(0).max(1));
const whole = (least: number, most = Number.MAX_SAFE_INTEGER) => numeric(z.number().int().min(least).max(most));

/** What a generated workload is made of. */
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
  context: whole(2, 2 ** 31 - 1).optional(),
};

/** What changes in a workload, wherever it comes from, and what comes beside it. */
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

export function addWorkloadFlags(command: Command): Command {
  const kinds = ['poisson', 'constant', 'bursts'];
  return command
    .option('--requests <n>', 'how many (default: 1000)')
    .option('--seed <s>', 'the same requests every time (default: 0)')
    .addOption(new Option('--arrivals <kind>', 'how requests come (default: poisson)').choices(kinds))
    .option('--rate <r>', 'requests a second in the mean (default: 1)')
    .option('--on <seconds>', 'mean length of a burst (default: 10)')
    .option('--off <seconds>', 'mean pause between bursts (default: 50)')
    .option('--input <lengths>', 'prompt tokens: 512, 100..900, or 8000~0.6 (log-normal: mean and deviation over mean)')
    .option('--output <lengths>', 'output tokens, likewise')
    .option('--lengths <file>', 'CSV of num_prefill_tokens,num_decode_tokens to draw both from')
    .option('--long <share>', 'share of requests with long prompts')
    .option('--long-input <lengths>', 'prompt tokens of those (default: 50000..150000)')
    .option('--shared <share>', "share of a prompt that is its family's prefix (default: 0)")
    .option('--families <k>', 'how many prefixes there are (default: 64)')
    .option('--zipf <s>', 'the k-th prefix is as popular as 1 / k^s (default: 1)')
    .option('--pin-families <k>', 'the most popular prefixes are pinned at the start')
    .option('--pin-ttl <seconds>', 'for so long (default: 600)')
    .option('--turns <mean>', 'requests of a session (default: 1)')
    .option('--new-tokens <lengths>', 'what each turn adds to the last prompt and output (default: 330~1)')
    .option('--think <seconds>', 'mean time from an answer to the next turn (default: 30)')
    .option('--context <tokens>', 'prompt and output together at most (default: 131072)');
}

export function addTransformFlags(command: Command): Command {
  return command
    .option('--slice <span>', 'a part of the workload: 100..500 (requests) or 60s..5m (time)')
    .option('--tile <n>', 'the workload so many times, one after the other (default: 1)')
    .addOption(new Option('--tile-blocks <which>', 'blocks each time (default: fresh)').choices(['fresh', 'same']))
    .option('--speed <x>', 'arrivals come so many times as fast (default: 1)')
    .option('--tenants <list>', 'name:share, ...: who sends the requests that name nobody, by --seed')
    .option('--batch-rate <r>', 'batch jobs a second beside the workload (default: 0)')
    .option('--batch-input <lengths>', 'their prompt tokens (default: 1024)')
    .option('--batch-output <lengths>', 'their output tokens (default: 512)');
}

/** The preset with what the flags say otherwise. @throws UsageError for a lengths file that is none */
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
    answerMsPerToken: sessions?.answerMsPerToken ?? 50,
  };
}
