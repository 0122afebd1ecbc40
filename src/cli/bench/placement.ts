// `kvasir bench placement`: the time of a placement decision of the conductor.
import { Command } from 'commander';
import { z } from 'zod';
import { benchPlacement } from '../../bench/placement.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { WorkloadGenerator } from '../../trace/workload/generator.ts';
import { presets } from '../../trace/workload/presets.ts';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { readTrace } from '../simulate/trace-file.ts';
import { printTable } from '../terminal/table.ts';
import { progress } from './options.ts';

const count = (least: number) => numeric(z.number().int().min(least));

const schema = z.object({
  trace: z.string().optional(),
  instances: count(1).default(1000),
  blocks: count(1).default(10_000_000),
  replicas: count(1).default(3),
  blockTokens: count(1).default(512),
  prompts: count(1).default(12_031),
  repeats: count(1).default(3),
});

type Options = z.infer<typeof schema>;

export function placementCommand(): Command {
  return new Command('placement')
    .option(
      '--trace <file>',
      'Place the prompts of this trace (default: synthetic, as long as those of a chat service)',
    )
    .option('--instances <n>', 'Place on this number of instances (default: 1000)')
    .option('--blocks <n>', 'Fill the index with this number of distinct blocks (default: 10,000,000)')
    .option('--replicas <n>', 'Cache the blocks of a prompt on this number of instances (default: 3)')
    .option('--block-tokens <n>', 'Use blocks of this number of tokens (default: 512)')
    .option('--prompts <n>', 'Place at most this number of prompts (default: 12,031)')
    .option('--repeats <n>', 'Repeat this number of times and report the smallest median (default: 3)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(schema, flags);
      const prompts =
        options.trace === undefined ? generatedPrompts(options) : await tracePrompts(options, options.trace);
      const report = benchPlacement({ ...options, prompts, onProgress: progress });
      if (json === true) return console.log(JSON.stringify(report));
      const { decisionUs, ...facts } = report;
      printTable([facts], 'Prefix index and prompts');
      printTable([{ decisionUs }], 'Time of a placement decision');
    });
}

async function tracePrompts({ blockTokens, prompts: most }: Options, trace: string): Promise<readonly TraceRequest[]> {
  const prompts: TraceRequest[] = [];
  for await (const { requests } of readTrace(trace, { blockTokens })) {
    prompts.push(...requests.slice(0, most - prompts.length));
    if (prompts.length === most) break;
  }
  return prompts;
}

/** Sessions like the real workload of Mooncake, with the lengths of its conversation trace. */
function generatedPrompts({ blockTokens, prompts }: Options): readonly TraceRequest[] {
  const { real } = presets;
  const input = { kind: 'log-normal', mean: 12_000, variation: 1.3 } as const;
  const generator = new WorkloadGenerator({ ...real, lengths: { ...real.lengths, input } }, { seed: 0, blockTokens });
  return Array.from({ length: prompts }, () => generator.next());
}
