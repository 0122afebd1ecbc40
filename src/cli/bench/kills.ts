// `kvasir bench kills`: goodput of an overloaded cluster of processes, with faults of its processes and without.
import { Command } from 'commander';
import { z } from 'zod';
import { benchKills, faultKinds, type KillsReport, violationsOf } from '../../bench/kills/kills.ts';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { printTable } from '../terminal/table.ts';
import { ProcessCluster } from './cluster/process-cluster.ts';
import { progress } from './options.ts';

const seconds = (usual: number) => numeric(z.number().min(1)).default(usual);

const schema = z.object({
  instances: numeric(z.number().int().min(1).max(64)).default(4),
  gateways: numeric(z.number().int().min(1).max(16)).default(2),
  threads: numeric(z.number().int().min(1)).default(1),
  model: z.string().optional(),
  seconds: seconds(600),
  window: seconds(60),
  every: seconds(20),
  overload: numeric(z.number().positive()).default(2),
  queue: numeric(z.number().int().min(1)).default(64),
  faults: z
    .array(z.enum(faultKinds))
    .min(1)
    .default([...faultKinds]),
  seed: numeric(z.number().int().min(0)).default(1),
  settle: seconds(600),
});

export function killsCommand(): Command {
  return new Command('kills')
    .option('--instances <n>', 'Run this number of instance processes (default: 4)')
    .option('--gateways <n>', 'Run this number of gateways; clients send to each in turn (default: 2)')
    .option('--threads <n>', 'Give each instance this number of threads (default: 1)')
    .option('--model <path>', 'Load this model (default: the embedded kvasir-tiny)')
    .option('--seconds <n>', 'Measure with faults for this time, and without for as long (default: 600)')
    .option('--window <seconds>', 'Set the length of a window (default: 60)')
    .option('--every <seconds>', 'Inject a fault at this interval (default: 20)')
    .option('--faults <kind...>', `Inject these faults: ${faultKinds.join(', ')} (default: all)`)
    .option('--seed <n>', 'Choose the order of faults and their processes by this seed (default: 1)')
    .option('--settle <seconds>', 'After this time no process may grow by more than 10 % (default: 600)')
    .option('--overload <x>', 'Send this multiple of the request rate that the cluster serves (default: 2)')
    .option('--queue <n>', 'Accept at most this number of requests at once (default: 64)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { seconds, window, every, overload, faults, seed, settle, ...options } = readOptions(schema, flags);
      const cluster = await ProcessCluster.start({ ...options, faults });
      try {
        const windows = { seconds, windowSeconds: Math.min(window, seconds), everySeconds: every };
        const injected = { faults, seed, settleSeconds: settle };
        const report = await benchKills({ cluster, ...windows, ...injected, overload, onProgress: progress });
        const violations = violationsOf(report, faults);
        const passed = violations.length === 0;
        if (!passed) process.exitCode = 1;
        if (json === true) console.log(JSON.stringify({ ...report, violations, passed }));
        else show(report, violations);
      } finally {
        await cluster.close();
      }
    });
}

function show({ calm, killed, ...report }: KillsReport, violations: readonly string[]): void {
  const rows = [
    { windows: 'without faults', ...calm },
    { windows: `with ${report.kills} faults`, ...killed },
  ];
  printTable(rows, 'Goodput under overload');
  console.log(
    `Faults: ${Object.entries(report.faults)
      .map(([kind, count]) => `${count} ${kind}`)
      .join(', ')}.`,
  );
  console.log(
    `Goodput with faults over without: ${report.goodputRatio}. Pages used at the end: ${report.pagesUsedEnd}. Sent again: ${report.resent}.`,
  );
  printTable(
    Object.entries(report.memory).map(([processes, { settledBytes, laterBytes, endBytes, growth }]) => ({
      ...{ processes, 'settled MB': megabytes(settledBytes), 'later MB': megabytes(laterBytes) },
      ...{ 'end MB': megabytes(endBytes), growth },
    })),
    'Resident memory',
  );
  for (const failure of report.failures) console.log(failure);
  console.log(violations.length === 0 ? 'Passed.' : `Not passed: ${violations.join('; ')}.`);
}

const megabytes = (bytes: number): number => Math.round(bytes / 2 ** 20);
