// `kvasir bench placement`: how long the conductor takes to find an instance for a prompt.
import { Command } from 'commander';
import { z } from 'zod';
import { benchPlacement } from '../../bench/placement.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { WorkloadGenerator } from '../../trace/workload/generator.ts';
import { presets } from '../../trace/workload/presets.ts';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { printTable } from '../simulate/table.ts';
import { readTrace } from '../simulate/trace-file.ts';
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
    .description('decisions of cache-aware placement over a full prefix index: median and p99')
    .option('--trace <file>', 'prompts of a trace (default: made up, as long as those of a chat service)')
    .option('--instances <n>', 'instances (default: 1000)')
    .option('--blocks <n>', 'different blocks that they hold together (default: 10,000,000)')
    .option('--replicas <n>', 'instances that hold the blocks of a prompt (default: 3)')
    .option('--block-tokens <n>', 'tokens of a block (default: 512)')
    .option('--prompts <n>', 'prompts, at most (default: 12,031)')
    .option('--repeats <n>', 'passes over the prompts; the one with the smallest median counts (default: 3)')
    .option('--json', 'print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(schema, flags);
      const prompts = options.trace === undefined ? made(options) : await read(options, options.trace);
      const report = benchPlacement({ ...options, prompts, onProgress: progress });
      if (json === true) return console.log(JSON.stringify(report));
      const { decisionUs, ...facts } = report;
      printTable([facts]);
      printTable([{ decision: 'us', ...decisionUs }]);
    });
}

async function read({ blockTokens, prompts: most }: Options, trace: string): Promise<readonly TraceRequest[]> {
  const prompts: TraceRequest[] = [];
  for await (const { requests } of readTrace(trace, { blockTokens })) {
    prompts.push(...requests.slice(0, most - prompts.length));
    if (prompts.length === most) break;
  }
  return prompts;
}

/** Sessions like Mooncake's real workload, as long as its conversation trace. */
function made({ blockTokens, prompts }: Options): readonly TraceRequest[] {
  const { real } = presets;
  const input = { kind: 'log-normal', mean: 12_000, variation: 1.3 } as const;
  const generator = new WorkloadGenerator({ ...real, lengths: { ...real.lengths, input } }, { seed: 0, blockTokens });
  return Array.from({ length: prompts }, () => generator.next());
}
