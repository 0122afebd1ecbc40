// `kvasir plan`: the cheapest cluster that serves a workload within its SLO, by simulation.
import { Command, Option } from 'commander';
import { z } from 'zod';
import { parseSloBound } from '../../core/router/admission/slo.ts';
import { addInstanceFlags } from '../options/cluster-options.ts';
import { readConfig, readOptions, toFlag } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { dopPlot } from '../simulate/dop-plot.ts';
import { checkOutputs, writeOutput } from '../simulate/outputs/output-file.ts';
import {
  type PlanObserver,
  type PlanTrial,
  planClusters,
  planFeatures,
  type RawFlags,
} from '../simulate/plan-clusters.ts';
import { type DopCurves, type DopPlan, dopCurves, planDopFromFlags } from '../simulate/plan-dop.ts';
import { addRunFlags, givenFlags } from '../simulate/simulated-run.ts';
import { bar } from '../terminal/bars.ts';
import { percent, readable } from '../terminal/fields.ts';
import { addHelpAll, groups } from '../terminal/help.ts';
import { printTable } from '../terminal/table.ts';
import { UsageError } from '../usage-error.ts';

const schema = z.object({
  hardware: z.string().transform((names) => [...new Set(names.split(',').map((name) => name.trim()))]),
  instancesMax: numeric(z.number().int().min(1).max(1024)).default(16),
  features: z
    .string()
    .default('')
    .transform((text) => text.split(',').map((name) => name.trim()))
    .transform((names) => (names.join() === 'all' ? [...planFeatures] : names.filter((name) => name !== '')))
    .pipe(z.array(z.enum(planFeatures, `write all, or some of ${planFeatures.join(', ')}`))),
  within: numeric(z.number().positive().max(1)).default(0.99),
});

export function planCommand(): Command {
  const command = new Command('plan')
    .argument('[experiment]', 'YAML file as for simulate, whose cluster is ignored; flags take precedence')
    .optionsGroup(groups.cluster)
    .option('--hardware <names>', 'Try these entries of specs/hardware.yaml, separated by commas')
    .option('--within <share>', 'Keep this share of the requests within their SLO (default: 0.99)')
    .option(
      '--features <names>',
      `Also try each of these features alone: ${planFeatures.join(', ')}; all: every one (default: none)`,
    )
    .option('--instances-max <n>', 'Try clusters of at most this number of instances (default: 16)')
    .optionsGroup(groups.output)
    .option('--json', 'Print one JSON object with all figures');
  const rare = [
    ...[groups.instances, groups.memory, groups.lending, groups.pipeline, groups.tiers, groups.network],
    ...[groups.synthetic, groups.transform, groups.faults],
  ];
  return addHelpAll(addDopPlanFlags(addInstanceFlags(addRunFlags(command))), ...rare).action(
    async (
      config: string | undefined,
      { json, hardware, within, instancesMax, features, ...given }: { json?: boolean } & Record<string, unknown>,
    ) => {
      const flags = givenFlags(given);
      if (config !== undefined) flags.config = config;
      const options = config === undefined ? flags : { ...readConfig(config), ...flags };
      if (options.dop !== undefined) {
        const { dop } = options;
        refuseClusterOptions({ features, within, instancesMax });
        return await runDopPlan({ ...flags, hardware: hardware ?? options.hardware }, dop, json === true);
      }
      if (hardware === undefined) throw new UsageError('Cannot plan without hardware: use --hardware NAME,NAME...');
      if (options.ttftSlo === undefined || options.tbtSlo === undefined)
        throw new UsageError('Cannot plan without an SLO: use --ttft-slo and --tbt-slo');
      const settings = readOptions(schema, { hardware, within, instancesMax, features });
      const stepMs = options.stepMs ?? stepMsOf(options.tbtSlo);
      if (stepMs !== undefined) flags.stepMs = stepMs;
      const progress = new PlanProgress();
      const plan = planClusters({ ...settings, flags }, progress.observer).finally(() => progress.close());
      const { winner, command: line, frontier, tried, leftOut } = await plan;
      if (json === true) {
        const rows = frontier.map(figuresOf);
        console.log(JSON.stringify({ winner: figuresOf(winner), command: line, frontier: rows, tried, leftOut }));
        return;
      }
      for (const { hardware: name, why } of leftOut) console.error(`Left out ${name}: ${why}`);
      printTable(
        frontier.map((trial) => rowOf(trial, trial === winner, settings.features.length > 0)),
        'Clusters, each the cheapest for its share of requests within the SLO',
      );
      console.log(
        `Simulated ${readable(tried)} clusters. The cheapest with ${percent(settings.within)} within the SLO:\n\n${line}`,
      );
    },
  );
}

/** Refuses options of the search over clusters, which have no effect with `--dop`. */
function refuseClusterOptions(given: RawFlags): void {
  const wrong = Object.keys(given).find((name) => given[name] !== undefined);
  if (wrong === undefined) return;
  throw new UsageError(`Cannot use --${toFlag(wrong)} with --dop: it divides devices and tries no clusters`);
}

function addDopPlanFlags(command: Command): Command {
  return command
    .optionsGroup(groups.attention)
    .addOption(
      new Option(
        '--objective <figure>',
        'With --dop, sort by tokens per second or by tokens per price (default: cost)',
      ).choices(['throughput', 'cost']),
    )
    .option(
      '--alpha <share>',
      'With --dop, report the NIC bandwidth at which messages add this share to a step (default: 0.2)',
    )
    .option('--model-devices-max <n>', 'Use at most this number of devices for model workers (default: one machine)')
    .option(
      '--attention-devices-max <n>',
      'Use at most this number of devices for attention workers (default: one machine)',
    )
    .option('--dop-rows <n>', 'List this number of divisions (default: 12)')
    .option('--plot <file>', 'With --dop, draw throughput by price of the listed divisions into this SVG file');
}

/** @param dop (a, b), whose curves are printed; true or 'auto': all divisions are compared */
async function runDopPlan({ plot, ...flags }: RawFlags, dop: unknown, json: boolean): Promise<void> {
  const isSearch = dop === true || dop === 'auto';
  const file = plot === undefined ? undefined : String(plot);
  if (!isSearch && file !== undefined)
    throw new UsageError(`Cannot use --plot with --dop ${String(dop)}: it shows all choices of --dop`);
  checkOutputs({ plot: file });
  const plan = isSearch ? await planDopFromFlags(flags) : await dopCurves(flags, String(dop));
  if (file !== undefined && !('curves' in plan)) writeOutput(file, dopPlot(plan));
  if (json) console.log(JSON.stringify(plan));
  else if ('curves' in plan) printDopCurves(plan);
  else printDopPlan(plan);
}

function printDopCurves({ curves, model, dop, staggeredBatches, contextTokens, alpha }: DopCurves): void {
  const rounded = (value: number, digits = 1) => Number(value.toFixed(digits));
  printTable(
    curves.map((row) => ({
      sequences: row.sequences,
      't_m (ms)': rounded(row.modelMs),
      't_a (ms)': rounded(row.attentionMs),
      't_n (ms)': rounded(row.networkMs),
      'TBT (ms)': rounded(row.tbtMs),
      'tokens/s': Math.round(row.tokensPerSecond),
      MFU: percent(row.modelMfu),
      MBU: percent(row.attentionMbu),
      'GB/s': rounded(row.gigabytesPerSecondMin),
    })),
    `${model} on (${dop}), ${staggeredBatches} staggered batches, sequences of ${readable(contextTokens)} tokens`,
  );
  console.log(
    `  MFU of the model part, MBU of the attention part; GB/s of each NIC at which the network adds ${percent(alpha)}`,
  );
}

function printDopPlan({ dop, coupled, model, contextTokens, sequencesMax, alpha }: DopPlan): void {
  const rounded = (value: number, digits = 1) => Number(value.toFixed(digits));
  printTable(
    dop.map((row) => ({
      dop: row.dop,
      batches: row.staggeredBatches,
      'price/hour': row.pricePerHour.toFixed(2),
      sequences: row.sequences,
      't_m (ms)': rounded(row.modelMs),
      't_a (ms)': rounded(row.attentionMs),
      't_n (ms)': rounded(row.networkMs),
      'TBT (ms)': rounded(row.tbtMs),
      'tokens/s': Math.round(row.tokensPerSecond),
      'tokens/$': Math.round(row.tokensPerPrice),
    })),
    `Model workers and attention workers for ${model}, at most ${readable(sequencesMax)} sequences of ${readable(contextTokens)} tokens`,
  );
  const [{ dop: first, gigabytesPerSecondMin }] = dop;
  console.log(
    `  The bytes of ${first} add ${percent(alpha)} to a step if each NIC has ${rounded(gigabytesPerSecondMin)} GB/s\n`,
  );
  printTable(
    coupled.map((row) => ({
      tp: row.tp,
      'price/hour': row.pricePerHour.toFixed(2),
      sequences: row.sequences,
      tbtMs: rounded(row.tbtMs),
      'tokens/s': Math.round(row.tokensPerSecond),
      'tokens/$': Math.round(row.tokensPerPrice),
    })),
    'Instances without attention workers',
  );
}

/** The TBT SLO also limits mixed steps, if it is a time. */
function stepMsOf(tbtSlo: unknown): string | undefined {
  const bound = parseSloBound(String(tbtSlo));
  return bound !== undefined && 'us' in bound ? String(bound.us / 1000) : undefined;
}

const lineMs = 10_000;

/** A progress line on a terminal, and occasional lines elsewhere. */
class PlanProgress {
  readonly #output = process.stderr;
  #shownMs = performance.now();

  readonly observer: PlanObserver = (tried, next) => {
    const text = `Planning: ${tried} simulated, next ${next}`;
    if (this.#output.isTTY === true) {
      this.#output.write(`\r${text.slice(0, (this.#output.columns ?? 80) - 1)}\x1b[K`);
    } else if (performance.now() - this.#shownMs >= lineMs) {
      this.#shownMs = performance.now();
      this.#output.write(`${text}\n`);
    }
  };

  /** Clears the progress line. */
  close(): void {
    if (this.#output.isTTY === true) this.#output.write('\r\x1b[K');
  }
}

function figuresOf({ unit, decodeUnit, prefill, decode, mixed, machines, pricePerHour, share, ...times }: PlanTrial) {
  const { hardware, tp, pp, feature } = unit;
  return {
    ...{ hardware, tp, ...(feature && { feature, pp }), decodeHardware: decodeUnit.hardware, decodeTp: decodeUnit.tp },
    ...{ prefill, decode, mixed, machines },
    pricePerHour: Number(pricePerHour.toFixed(2)),
    withinSlo: share,
    ...{ ttftMs: times.ttftMs, tbtMs: times.tbtMs },
  };
}

function rowOf(trial: PlanTrial, isCheapest: boolean, showsFeatures: boolean) {
  const { ttftMs, tbtMs, withinSlo, hardware, tp, pp, feature, decodeHardware, decodeTp, ...rest } = figuresOf(trial);
  const rounded = (ms: number) => Number(ms.toFixed(1));
  const isSplit = decodeHardware !== hardware;
  const { prefill, decode, mixed, machines, pricePerHour } = rest;
  return {
    hardware: isSplit ? `${hardware} + ${decodeHardware}` : hardware,
    tp: isSplit ? `${tp} + ${decodeTp}` : tp,
    ...(showsFeatures && { with: feature === undefined ? '' : feature === 'pp' ? `pp ${pp}` : feature }),
    ...{ prefill, decode, mixed, machines, 'price/hour': pricePerHour.toFixed(2) },
    withinSlo: `${bar(withinSlo, 8)} ${percent(withinSlo)}`,
    ttftMsP99: rounded(ttftMs.p99),
    tbtMsP99: rounded(tbtMs.p99),
    '': isCheapest ? 'cheapest' : '',
  };
}
