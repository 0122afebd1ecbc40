// `kvasir simulate`: replays a workload on a simulated cluster that runs the same schedulers as live instances.
import { Command } from 'commander';
import { addClusterFlags } from '../options/cluster-options.ts';
import { readOptions } from '../options/options.ts';
import { runChaos } from '../simulate/chaos/chaos.ts';
import { clientPlot } from '../simulate/clients/client-plot.ts';
import { isSweep, printSweep, sweepClients } from '../simulate/clients/client-sweep.ts';
import { type HighestRate, runAtHighestRate } from '../simulate/find-rate.ts';
import { checkOutputs, writeOutput } from '../simulate/outputs/output-file.ts';
import { addOutputFlags } from '../simulate/outputs/run-outputs.ts';
import { withPlannedDop } from '../simulate/plan-dop.ts';
import { replayCommand } from '../simulate/replay/replay-run.ts';
import { addReplayFlags, refuseReplayFlags } from '../simulate/replay/replay-settings.ts';
import { printReport } from '../simulate/run-summary.ts';
import {
  addRunFlags,
  completeReport,
  givenFlags,
  runSimulation,
  type SimulationOptions,
  simulationSchema,
} from '../simulate/simulated-run.ts';
import { counted, percent, readable } from '../terminal/fields.ts';
import { addHelpAll, groups } from '../terminal/help.ts';
import { printList } from '../terminal/table.ts';
import { UsageError } from '../usage-error.ts';

export function simulateCommand(): Command {
  const command = new Command('simulate').argument(
    '[experiment]',
    'YAML file with options of the same names as the flags; flags take precedence',
  );
  addClusterFlags(addRunFlags(addReplayFlags(command)))
    .optionsGroup(groups.workload)
    .option('--config <file>', 'The same as the argument')
    .option(
      '--clients <n>',
      'Send requests from this number of clients, each when its last request ends; several numbers, 1,8,16, are compared',
    )
    .option('--clients-plot <file>', 'Draw throughput and TTFT by --clients into this SVG file')
    .option(
      '--find-rate <share>',
      'Find the highest rate of the workload, scaled in time, that keeps this share of requests within the SLO',
    )
    .optionsGroup(groups.faults)
    .option('--check', 'Check every invariant after every event')
    .option('--chaos', 'Run random faults with all checks instead of a workload, once for each seed from --seed on')
    .option('--seeds <n>', 'Run --chaos (default: 100) or --find-rate (default: 1) with this number of seeds');
  const rare = [
    ...[groups.instances, groups.memory, groups.lending, groups.pipeline, groups.tiers, groups.network, groups.roles],
    ...[groups.sparse, groups.store, groups.standby, groups.synthetic, groups.transform, groups.faults],
  ];
  return addHelpAll(addOutputFlags(command), ...rare).action(
    async (experiment: string | undefined, { json, ...given }: { json?: boolean } & Record<string, unknown>) => {
      const flags = givenFlags(given);
      if (experiment !== undefined) flags.config = experiment;
      if (flags.replay !== undefined) {
        await replayCommand(flags, json === true);
        return;
      }
      refuseReplayFlags(flags);
      if (flags.dop === true)
        throw new UsageError('Cannot use --dop without a value: write MODEL,ATTENTION, for example --dop 2,4, or auto');
      const options = await withPlannedDop(readOptions(simulationSchema, flags), (line) => console.error(line));
      if (options.chaos) {
        await runChaos({ ...options, seeds: options.seeds ?? 100 }, json === true);
        return;
      }
      if (isSweep(options)) {
        await runSweep(options, json === true);
        return;
      }
      await runOnce(options, json === true);
    },
  );
}

/** Runs the workload, or searches for its highest rate, and prints the figures. */
async function runOnce(options: SimulationOptions, json: boolean): Promise<void> {
  const { report: page, loadPlot, requestsOut, timeline, recording } = options;
  checkOutputs({ report: page, loadPlot, requestsOut, timeline, recording });
  const started = performance.now();
  const search = options.findRate === undefined ? undefined : await runAtHighestRate(options, options.findRate);
  const simulation = search?.simulation ?? (await runSimulation(options));
  const report = {
    ...(search && searchFigures(search)),
    ...completeReport(simulation, options, (performance.now() - started) / 1000),
  };
  if (json) console.log(JSON.stringify(report));
  else {
    if (search !== undefined) printRate(search);
    printReport(report, simulation.outcome);
  }
}

/** The rate that the search has found, with its interval over the seeds. */
function printRate({ parameter, found, several, share }: HighestRate): void {
  const unit = parameter === 'rate' ? 'requests/s' : 'times the speed of the trace';
  const entries: (readonly [string, string])[] = [[`mean ${parameter}`, `${readable(found.rate)} ${unit}`]];
  if (several !== undefined) {
    const { rates, interval } = several;
    entries.push([`95 % interval of the mean, ${counted(rates.length, 'seed')}`, interval.map(readable).join(' to ')]);
    entries.push(['least and most', `${readable(Math.min(...rates))}, ${readable(Math.max(...rates))}`]);
  } else entries[0] = [parameter, `${readable(found.rate)} ${unit}; ${readable(found.above)} is too high`];
  entries.push(['simulated runs', readable(found.tried)]);
  printList(`Highest ${parameter} that keeps ${percent(share)} within SLO`, entries);
}

function searchFigures({ parameter, found, several, curve }: HighestRate) {
  return { [parameter]: found.rate, ...several, tried: found.tried, curve };
}

/** Compares closed loops. */
async function runSweep(options: SimulationOptions, json: boolean): Promise<void> {
  const { clientsPlot, model, hardware } = options;
  checkOutputs({ clientsPlot });
  const sweep = await sweepClients(options);
  if (clientsPlot !== undefined) writeOutput(clientsPlot, clientPlot(sweep, `${model} on ${hardware}`));
  if (json) console.log(JSON.stringify(sweep));
  else printSweep(sweep);
}
