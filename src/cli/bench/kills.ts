// `kvasir bench kills`: goodput of a cluster of processes under overload, with instances killed and without.
import { Command } from 'commander';
import { z } from 'zod';
import { benchKills } from '../../bench/kills/kills.ts';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { printTable } from '../simulate/table.ts';
import { progress } from './options.ts';
import { ProcessCluster } from './process-cluster.ts';

const seconds = (usual: number) => numeric(z.number().min(1)).default(usual);

const schema = z.object({
  instances: numeric(z.number().int().min(1).max(64)).default(4),
  threads: numeric(z.number().int().min(1)).default(1),
  model: z.string().optional(),
  seconds: seconds(600),
  window: seconds(60),
  every: seconds(20),
  overload: numeric(z.number().positive()).default(2),
  queue: numeric(z.number().int().min(1)).default(64),
});

export function killsCommand(): Command {
  return new Command('kills')
    .description(
      'goodput of a cluster of processes under overload, with instances killed by chance and without, by turns',
    )
    .option('--instances <n>', 'processes that serve (default: 4)')
    .option('--threads <n>', 'compute threads of each (default: 1)')
    .option('--model <path>', 'default: the embedded kvasir-tiny')
    .option('--seconds <n>', 'of windows with kills, and of as many without (default: 600)')
    .option('--window <seconds>', 'one window (default: 60)')
    .option('--every <seconds>', 'between two kills (default: 20)')
    .option('--overload <x>', 'requests over what is served of itself (default: 2)')
    .option('--queue <n>', 'requests accepted at once (default: 64)')
    .option('--json', 'print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { seconds, window, every, overload, ...options } = readOptions(schema, flags);
      const cluster = await ProcessCluster.start(options);
      try {
        const windows = { seconds, windowSeconds: Math.min(window, seconds), everySeconds: every };
        const report = await benchKills({ cluster, ...windows, overload, onProgress: progress });
        if (json === true) console.log(JSON.stringify(report));
        else show(report);
      } finally {
        await cluster.close();
      }
    });
}

function show({ calm, killed, ...report }: Awaited<ReturnType<typeof benchKills>>): void {
  printTable([
    { windows: 'without kills', ...calm },
    { windows: `with ${report.kills} kills`, ...killed },
  ]);
  console.log(`goodput with kills over without: ${report.goodputRatio}; pages used at the end: ${report.pagesUsedEnd}`);
  for (const failure of report.failures) console.log(failure);
}
