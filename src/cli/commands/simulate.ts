// `kvasir simulate`: replays a trace over a described cluster, through the machines that serve.
import { Command } from 'commander';
import { lendingReport } from '../../sim/lending/lending-report.ts';
import { addClusterFlags, pricePerHourOf } from '../options/cluster-options.ts';
import { readOptions } from '../options/options.ts';
import { runChaos } from '../simulate/chaos.ts';
import { printReport, reportOf } from '../simulate/run-figures.ts';
import { addOutputFlags } from '../simulate/run-outputs.ts';
import {
  addRunFlags,
  runAtHighestRate,
  runSimulation,
  simulationSchema,
  withoutUnsaid,
} from '../simulate/simulated-run.ts';

export function simulateCommand(): Command {
  const command = new Command('simulate')
    .description('replay a workload over a described cluster, through the machines that serve')
    .argument('[experiment]', 'YAML file with the names of these flags; flags win')
    .option('--check', 'every machine, and what must hold between them, is checked after every event')
    .option('--find-rate <share>', 'the highest --rate, or --speed of a trace, that keeps such a share within SLO')
    .option('--chaos', 'instead of a workload: random faults with every check on, a run for each seed from --seed on')
    .option('--seeds <n>', 'seeds of --chaos (default: 100)')
    .option('--config <file>', 'the same as the argument')
    .option('--json', 'print one JSON object');
  return addOutputFlags(addClusterFlags(addRunFlags(command))).action(
    async (experiment: string | undefined, { json, ...given }: { json?: boolean } & Record<string, unknown>) => {
      const flags = withoutUnsaid(given);
      if (experiment !== undefined) flags.config = experiment;
      const options = readOptions(simulationSchema, flags);
      if (options.chaos) {
        runChaos(options, json === true);
        return;
      }
      const started = performance.now();
      const search = options.findRate === undefined ? undefined : await runAtHighestRate(options, options.findRate);
      const { outcome, lending, inside, fates } = search?.simulation ?? (await runSimulation(options));
      const report = {
        ...(search && { [search.knob]: search.found.rate, tried: search.found.tried }),
        ...reportOf(outcome, (performance.now() - started) / 1000),
        seed: options.seed,
        pricePerHour: pricePerHourOf(options),
        ...(lending === undefined ? {} : { lending: lendingReport(lending, outcome) }),
        ...(inside.faults && {
          faults: Object.fromEntries(inside.faults.injected),
          handlers: Object.fromEntries(fates.counts),
        }),
      };
      if (json === true) console.log(JSON.stringify(report));
      else printReport(report);
    },
  );
}
