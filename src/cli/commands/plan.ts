// `kvasir plan`: the cheapest cluster that keeps a workload within its SLO, found by simulating.
import { Command } from 'commander';
import { z } from 'zod';
import { parseSloBound } from '../../core/router/admission/slo.ts';
import { addInstanceFlags } from '../options/cluster-options.ts';
import { readConfig, readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { type PlanTrial, type PlanWatch, percent, planClusters } from '../simulate/plan-clusters.ts';
import { addRunFlags, withoutUnsaid } from '../simulate/simulated-run.ts';
import { printTable } from '../simulate/table.ts';
import { UsageError } from '../usage-error.ts';

const schema = z.object({
  hardware: z.string().transform((names) => [...new Set(names.split(',').map((name) => name.trim()))]),
  instancesMax: numeric(z.number().int().min(1).max(1024)).default(16),
  within: numeric(z.number().positive().max(1)).default(0.99),
});

export function planCommand(): Command {
  const command = new Command('plan')
    .description('find the cheapest cluster that keeps a workload within its SLO, by simulating')
    .argument('[experiment]', 'YAML file as for simulate, but for its cluster; flags win')
    .option('--hardware <names>', 'of specs/hardware.yaml with their prices, with commas between')
    .option('--within <share>', 'of the requests, to be within their SLO (default: 0.99)')
    .option('--instances-max <n>', 'of a cluster (default: 16)')
    .option('--json', 'print one JSON object');
  return addInstanceFlags(addRunFlags(command)).action(
    async (
      config: string | undefined,
      { json, hardware, within, instancesMax, ...given }: { json?: boolean } & Record<string, unknown>,
    ) => {
      const flags = withoutUnsaid(given);
      if (config !== undefined) flags.config = config;
      const said = config === undefined ? flags : { ...readConfig(config), ...flags };
      if (hardware === undefined) throw new UsageError('Cannot plan without hardware: give --hardware NAME,NAME...');
      if (said.ttftSlo === undefined || said.tbtSlo === undefined)
        throw new UsageError('Cannot plan without an SLO: give --ttft-slo and --tbt-slo');
      const settings = readOptions(schema, { hardware, within, instancesMax });
      const stepMs = said.stepMs ?? stepMsOf(said.tbtSlo);
      if (stepMs !== undefined) flags.stepMs = stepMs;
      const progress = new PlanProgress();
      const plan = planClusters({ ...settings, flags }, progress.watch).finally(() => progress.close());
      const { winner, command: line, frontier, tried, leftOut } = await plan;
      if (json === true) {
        const rows = frontier.map(figuresOf);
        console.log(JSON.stringify({ winner: figuresOf(winner), command: line, frontier: rows, tried, leftOut }));
        return;
      }
      for (const { hardware: name, why } of leftOut) console.error(`Left out ${name}: ${why}`);
      printTable(frontier.map((trial) => rowOf(trial, trial === winner)));
      console.log(
        `${tried} clusters simulated. The cheapest that keeps ${percent(settings.within)} within SLO:\n\n${line}`,
      );
    },
  );
}

/** Steps that decode beside prefill may take what a gap may, where that is a time. */
function stepMsOf(tbtSlo: unknown): string | undefined {
  const bound = parseSloBound(String(tbtSlo));
  return bound !== undefined && 'us' in bound ? String(bound.us / 1000) : undefined;
}

const lineMs = 10_000;

/** A line that moves on a terminal, a line now and then elsewhere. */
class PlanProgress {
  readonly #output = process.stderr;
  #shownMs = performance.now();

  readonly watch: PlanWatch = (tried, next) => {
    const text = `Planning: ${tried} simulated, next ${next}`;
    if (this.#output.isTTY === true) {
      this.#output.write(`\r${text.slice(0, (this.#output.columns ?? 80) - 1)}\x1b[K`);
    } else if (performance.now() - this.#shownMs >= lineMs) {
      this.#shownMs = performance.now();
      this.#output.write(`${text}\n`);
    }
  };

  /** Takes the line back. */
  close(): void {
    if (this.#output.isTTY === true) this.#output.write('\r\x1b[K');
  }
}

function figuresOf({ unit, decodeUnit, prefill, decode, mixed, machines, pricePerHour, share, ...times }: PlanTrial) {
  const { hardware, tp } = unit;
  return {
    ...{ hardware, tp, decodeHardware: decodeUnit.hardware, decodeTp: decodeUnit.tp },
    ...{ prefill, decode, mixed, machines },
    pricePerHour: Number(pricePerHour.toFixed(2)),
    withinSlo: share,
    ...{ ttftMs: times.ttftMs, tbtMs: times.tbtMs },
  };
}

function rowOf(trial: PlanTrial, cheapest: boolean) {
  const { ttftMs, tbtMs, withinSlo, hardware, tp, decodeHardware, decodeTp, ...rest } = figuresOf(trial);
  const rounded = (ms: number) => Number(ms.toFixed(1));
  const parted = decodeHardware !== hardware;
  return {
    hardware: parted ? `${hardware} + ${decodeHardware}` : hardware,
    tp: parted ? `${tp} + ${decodeTp}` : tp,
    ...rest,
    withinSlo: percent(withinSlo),
    ttftMsP99: rounded(ttftMs.p99),
    tbtMsP99: rounded(tbtMs.p99),
    '': cheapest ? 'cheapest' : '',
  };
}
