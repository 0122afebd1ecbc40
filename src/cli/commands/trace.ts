// `kvasir trace`: analyses and generates workload traces.
import { basename, extname } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { Command, Option } from 'commander';
import { z } from 'zod';
import { evictionKinds } from '../../core/kvcache/eviction.ts';
import { firstMooncakeLine, mooncakeLine } from '../../trace/mooncake.ts';
import type { TraceSource } from '../../trace/parser.ts';
import type { CacheBound } from '../../trace/reuse.ts';
import { type TraceStatistics, TraceSummary } from '../../trace/statistics.ts';
import { presetNames } from '../../trace/workload/presets.ts';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import {
  addTransformFlags,
  addWorkloadFlags,
  timeUnit,
  timeUnitFlag,
  transformFields,
  workloadFields,
} from '../options/workload-options.ts';
import { readEviction } from '../simulate/policy-file.ts';
import type { TracePiece } from '../simulate/trace-file.ts';
import { openWorkload } from '../simulate/workload-source.ts';
import { bar } from '../terminal/bars.ts';
import { counted, percent, readable } from '../terminal/fields.ts';
import { printList, printTable } from '../terminal/table.ts';

/** '1000,10000' */
const capacities = z
  .union([z.array(z.number()), z.number(), z.string()])
  .transform((value): unknown => (typeof value === 'string' ? value.split(',') : [value].flat()))
  .pipe(z.array(numeric(z.number().int().min(1))))
  .default([]);

/** Options of a trace file. */
const fileFields = {
  ...transformFields,
  timeUnit,
  blockTokens: numeric(z.number().int().min(1)).default(512),
};

const statsSchema = z.object({
  ...fileFields,
  capacity: capacities,
  capacityTokens: capacities,
  eviction: z.enum(evictionKinds).default('lru'),
  policy: z.string().optional(),
});

export function traceCommand(): Command {
  const trace = new Command('trace');
  trace.addCommand(statsCommand());
  trace.addCommand(convertCommand());
  trace.addCommand(generateCommand());
  return trace;
}

function statsCommand(): Command {
  const command = new Command('stats')
    .description('Print lengths, arrivals, and the hit ratios of caches')
    .argument('<file>', 'Trace file')
    .option('--capacity <blocks,...>', 'Print the hit ratios of caches of these numbers of blocks')
    .option('--capacity-tokens <tokens,...>', 'Print the hit ratios of caches of these numbers of tokens')
    .addOption(new Option('--eviction <order>', 'Evict blocks in this order (default: lru)').choices(evictionKinds))
    .option('--policy <file>', 'Evict blocks by the policy of this module (see kvasir/policy)')
    .option('--block-tokens <n>', 'Count blocks of this number of tokens (default: 512)')
    .addOption(timeUnitFlag())
    .option('--config <file>', 'Read options of the same names from a YAML file; flags take precedence')
    .option('--json', 'Print one JSON object with all figures');
  return addTransformFlags(command).action(
    async (trace: string, { json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { capacity, capacityTokens, eviction: order, policy, ...options } = readOptions(statsSchema, flags);
      const eviction = policy === undefined ? order : await readEviction(policy);
      const summary = new TraceSummary(options.blockTokens);
      let found: TraceSource | undefined;
      for await (const { requests, source } of openWorkload({ ...options, trace, seed: 0 })) {
        found = source;
        for (const request of requests) summary.add(request);
      }
      const bounds: CacheBound[] = [
        ...capacity.map((capacityBlocks) => ({ eviction, capacityBlocks })),
        ...capacityTokens.map((tokens) => ({ eviction, capacityTokens: tokens })),
      ];
      const statistics = { ...found, ...summary.statistics(bounds, policy && basename(policy, extname(policy))) };
      if (json === true) console.log(JSON.stringify(statistics));
      else printStatistics(statistics);
    },
  );
}

const convertSchema = z.object(fileFields);

function convertCommand(): Command {
  const command = new Command('convert')
    .description('Write a trace of any format, or a part of it, as Mooncake JSON lines')
    .argument('<file>', 'Trace file')
    .option('--block-tokens <n>', 'Use blocks of this number of tokens (default: 512)')
    .addOption(timeUnitFlag())
    .option('--config <file>', 'Read options of the same names from a YAML file; flags take precedence');
  return addTransformFlags(command).action(async (trace: string, flags: Record<string, unknown>) => {
    const options = { ...readOptions(convertSchema, flags), trace, seed: 0 };
    await pipeline(linesOf(openWorkload(options)), process.stdout, { end: false });
  });
}

const generateSchema = z.object({
  ...workloadFields,
  ...transformFields,
  blockTokens: numeric(z.number().int().min(1)).default(512),
});

function generateCommand(): Command {
  const command = new Command('generate')
    .description('Generate a synthetic workload and write it as Mooncake JSON lines')
    .argument('[preset]', `Start from this preset: ${presetNames.join(', ')} (default: plain); flags change it`)
    .option('--block-tokens <n>', 'Use blocks of this number of tokens (default: 512)')
    .option('--config <file>', 'Read options of the same names from a YAML file; flags take precedence');
  return addTransformFlags(addWorkloadFlags(command)).action(
    async (preset: string | undefined, flags: Record<string, unknown>) => {
      const options = { ...readOptions(generateSchema, flags), workload: preset ?? 'plain' };
      await pipeline(linesOf(openWorkload(options)), process.stdout, { end: false });
    },
  );
}

/** The lines of each group of requests as one text. */
async function* linesOf(pieces: AsyncIterable<TracePiece>): AsyncGenerator<string, void> {
  let isFirst = true;
  for await (const { requests } of pieces) {
    const lines = requests.map((request, i) => (isFirst && i === 0 ? firstMooncakeLine : mooncakeLine)(request));
    yield lines.map((line) => `${line}\n`).join('');
    isFirst &&= requests.length === 0;
  }
}

type Statistics = TraceStatistics & Partial<TraceSource>;

function printStatistics({ inputTokens, outputTokens, arrivals, blocks, ideal, ...rest }: Statistics): void {
  const { gapMs, requestsPerSecond, busiestSecond, busiestMinute } = arrivals;
  const shareOf = (part: number) => (blocks.total === 0 ? 0 : part / blocks.total);
  const { format = '', timeUnit: unit, failedRows = 0, isTorn = false } = rest;
  printList(`Requests: ${readable(rest.requests)} in ${readable(rest.durationSeconds)} s`, [
    ['format', unit === undefined ? format : `${format}, times in ${unit}`],
    ...(failedRows === 0 ? [] : [['left out', counted(failedRows, 'failed request')] as const]),
    ...(isTorn ? [['left out', 'the last line, which was not written to its end'] as const] : []),
    ['arrivals', `${readable(requestsPerSecond)} requests/s`],
    ['busiest second', counted(busiestSecond, 'request')],
    ['busiest minute', counted(busiestMinute, 'request')],
    ['blocks', `${readable(blocks.total)} of ${rest.blockTokens} tokens`],
    [
      'distinct blocks',
      `${bar(shareOf(blocks.unique))} ${percent(shareOf(blocks.unique))}: ${readable(blocks.unique)}`,
    ],
    ...(blocks.withoutHashes === 0
      ? []
      : [['without hashes', `${readable(blocks.withoutHashes)}, counted as never seen`] as const]),
    [
      'used once',
      `${bar(shareOf(blocks.usedOnce))} ${percent(shareOf(blocks.usedOnce))}: ${readable(blocks.usedOnce)}`,
    ],
  ]);
  printTable(
    [
      { '': 'prompt tokens', ...inputTokens },
      { '': 'output tokens', ...outputTokens },
      { '': 'time between arrivals (ms)', ...gapMs, total: undefined },
    ],
    'Lengths and arrivals',
  );
  const bounds = rest.capacities.map(({ eviction, capacityBlocks, capacityTokens, ...ratios }) => {
    const size =
      capacityBlocks === undefined ? counted(capacityTokens ?? 0, 'token') : counted(capacityBlocks, 'block');
    return { cache: `${size}, ${eviction}`, ...ratios };
  });
  const rows = [{ cache: 'unbounded', ...ideal }, ...bounds].map(
    ({ cache, hitRatioTokens, hitRatioBlocks, meanRequestHitRatioBlocks, meanRequestHitRatioTokens }) => ({
      cache,
      hitTokens: `${bar(hitRatioTokens, 10)} ${percent(hitRatioTokens)}`,
      hitBlocks: percent(hitRatioBlocks),
      'by request: tokens': percent(meanRequestHitRatioTokens),
      'by request: blocks': percent(meanRequestHitRatioBlocks),
    }),
  );
  printTable(rows, 'Hit ratios');
}
