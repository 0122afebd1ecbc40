// `kvasir trace`: what a workload is made of.
import { pipeline } from 'node:stream/promises';
import { Command, Option } from 'commander';
import { z } from 'zod';
import { evictionKinds } from '../../core/kvcache/eviction.ts';
import { mooncakeLine } from '../../trace/mooncake.ts';
import type { CacheBound } from '../../trace/reuse.ts';
import { type TraceStatistics, TraceSummary } from '../../trace/statistics.ts';
import { presetNames } from '../../trace/workload/presets.ts';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { addTransformFlags, addWorkloadFlags, transformFields, workloadFields } from '../options/workload-options.ts';
import { printTable } from '../simulate/table.ts';
import type { TracePiece } from '../simulate/trace-file.ts';
import { openWorkload } from '../simulate/workload-source.ts';

/** '1000,10000' */
const capacities = z
  .union([z.array(z.number()), z.number(), z.string()])
  .transform((value): unknown => (typeof value === 'string' ? value.split(',') : [value].flat()))
  .pipe(z.array(numeric(z.number().int().min(1))))
  .default([]);

const statsSchema = z.object({
  ...transformFields,
  capacity: capacities,
  capacityTokens: capacities,
  eviction: z.enum(evictionKinds).default('lru'),
  blockTokens: numeric(z.number().int().min(1)).default(512),
});

export function traceCommand(): Command {
  const trace = new Command('trace').description(
    'look at workload traces (Mooncake JSON lines, Azure CSV; plain or gzip), or make them up',
  );
  trace.addCommand(statsCommand());
  trace.addCommand(generateCommand());
  return trace;
}

function statsCommand(): Command {
  const command = new Command('stats')
    .description('lengths, arrivals, and how much of the prompts a cache could serve')
    .argument('<file>', 'trace file')
    .option('--capacity <blocks,...>', 'hit ratios of caches of so many blocks')
    .option('--capacity-tokens <tokens,...>', 'hit ratios of caches of so many tokens')
    .addOption(new Option('--eviction <order>', 'which block goes first (default: lru)').choices(evictionKinds))
    .option('--block-tokens <n>', 'tokens of a block of the trace (default: 512)')
    .option('--config <file>', 'YAML file with the same names as these flags; flags win')
    .option('--json', 'print one JSON object');
  return addTransformFlags(command).action(
    async (trace: string, { json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { capacity, capacityTokens, eviction, ...options } = readOptions(statsSchema, flags);
      const summary = new TraceSummary(options.blockTokens);
      for await (const { requests } of openWorkload({ ...options, trace, seed: 0 }))
        for (const request of requests) summary.add(request);
      const bounds: CacheBound[] = [
        ...capacity.map((capacityBlocks) => ({ eviction, capacityBlocks })),
        ...capacityTokens.map((tokens) => ({ eviction, capacityTokens: tokens })),
      ];
      const statistics = summary.statistics(bounds);
      if (json === true) console.log(JSON.stringify(statistics));
      else printStatistics(statistics);
    },
  );
}

const generateSchema = z.object({
  ...workloadFields,
  ...transformFields,
  blockTokens: numeric(z.number().int().min(1)).default(512),
});

function generateCommand(): Command {
  const command = new Command('generate')
    .description('make a workload up and write it as Mooncake JSON lines')
    .argument('[preset]', `one of ${presetNames.join(', ')} (default: plain); flags say what is otherwise`)
    .option('--block-tokens <n>', 'tokens of a block (default: 512)')
    .option('--config <file>', 'YAML file with the same names as these flags; flags win');
  return addTransformFlags(addWorkloadFlags(command)).action(
    async (preset: string | undefined, flags: Record<string, unknown>) => {
      const options = { ...readOptions(generateSchema, flags), workload: preset ?? 'plain' };
      await pipeline(linesOf(openWorkload(options)), process.stdout, { end: false });
    },
  );
}

/** A piece of text for each group: the next is made when the reader has taken the last. */
async function* linesOf(pieces: AsyncIterable<TracePiece>): AsyncGenerator<string, void> {
  for await (const { requests } of pieces) yield requests.map((request) => `${mooncakeLine(request)}\n`).join('');
}

function printStatistics({ inputTokens, outputTokens, arrivals, blocks, ideal, ...rest }: TraceStatistics): void {
  const { gapMs, ...pace } = arrivals;
  printTable([{ requests: rest.requests, seconds: rest.durationSeconds, ...pace }].map(rounded));
  printTable(
    [
      { tokens: 'input', ...inputTokens },
      { tokens: 'output', ...outputTokens },
      { tokens: 'gap (ms)', ...gapMs, total: undefined },
    ].map(rounded),
  );
  printTable([blocks]);
  const caches = rest.capacities.map(({ eviction, capacityBlocks, capacityTokens, ...ratios }) => ({
    cache:
      capacityBlocks === undefined ? `${capacityTokens} tokens, ${eviction}` : `${capacityBlocks} blocks, ${eviction}`,
    ...ratios,
  }));
  printTable([{ cache: 'without bound', ...ideal }, ...caches].map(rounded));
}

/** Four digits of fractions. */
function rounded<T extends object>(row: T): object {
  return Object.fromEntries(
    Object.entries(row).map(([name, value]) => [
      name,
      typeof value === 'number' && !Number.isInteger(value) ? Number(value.toFixed(4)) : value,
    ]),
  );
}
