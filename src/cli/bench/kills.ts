// `kvasir bench kills`: goodput of an overloaded cluster of processes, with instances killed and without.
import { Command } from 'commander';
import { z } from 'zod';
import { benchKills } from '../../bench/kills/kills.ts';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { printTable } from '../terminal/table.ts';
import { ProcessCluster } from './cluster/process-cluster.ts';
import { progress } from './options.ts';

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
    .description('Goodput of an overloaded cluster of processes, in alternating windows with and without random kills')
    .option('--instances <n>', 'Run this number of instance processes (default: 4)')
    .option('--threads <n>', 'Give each instance this number of threads (default: 1)')
    .option('--model <path>', 'Load this model (default: the embedded kvasir-tiny)')
    .option('--seconds <n>', 'Measure with kills for this time, and without for as long (default: 600)')
    .option('--window <seconds>', 'Set the length of a window (default: 60)')
    .option('--every <seconds>', 'Kill an instance at this interval (default: 20)')
    .option('--overload <x>', 'Send this multiple of the request rate that the cluster serves (default: 2)')
    .option('--queue <n>', 'Accept at most this number of requests at once (default: 64)')
    .option('--json', 'Print one JSON object')
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
  const rows = [
    { windows: 'without kills', ...calm },
    { windows: `with ${report.kills} kills`, ...killed },
  ];
  printTable(rows, 'Goodput under overload');
  console.log(
    `Goodput with kills over without: ${report.goodputRatio}. Pages used at the end: ${report.pagesUsedEnd}.`,
  );
  for (const failure of report.failures) console.log(failure);
}
