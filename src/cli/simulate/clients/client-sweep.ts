// `kvasir simulate --clients 1,8,16`: one closed loop for each number of clients and each KV budget, and the largest number that is stable.
import type { KvBudget } from '../../../core/kvcache/sparsity/sparse-plan.ts';
import { latencyMs } from '../../../sim/report/histogram.ts';
import type { Outcome } from '../../../sim/report/outcome.ts';
import { readable } from '../../terminal/fields.ts';
import { printTable } from '../../terminal/table.ts';
import { UsageError } from '../../usage-error.ts';
import { withOutputsOf } from '../outputs/run-outputs.ts';
import { runSimulation, type SimulationOptions } from '../simulated-run.ts';

/** Limit on the median TTFT of a stable run, unless --ttft-slo states another. */
const ttftMsDefault = 1000;

export interface SweptRun {
  readonly clients: number;
  readonly outputTokensPerSecond: number;
  readonly ttftMs: ReturnType<typeof latencyMs>;
  readonly tbtMs: ReturnType<typeof latencyMs>;
  readonly preemptions: number;
  readonly refused: number;
  /** No request was preempted or refused, and the median TTFT is within its limit. */
  readonly isStable: boolean;
}

/** The runs with one KV budget. */
export interface BudgetSweep {
  /** Undefined: layers are not sparse. */
  readonly budget: KvBudget | undefined;
  readonly runs: readonly SweptRun[];
  /** The largest number of clients up to which every run is stable; undefined: the first one is not. */
  readonly stableClients: number | undefined;
}

export interface ClientSweep {
  readonly ttftMsMax: number;
  readonly sweeps: readonly BudgetSweep[];
}

/** Runs one loop after another, each with output files of its own. @throws UsageError if a run has too few requests for its clients */
export async function sweepClients(options: SimulationOptions): Promise<ClientSweep> {
  const { clients = [], sparseBudget = [undefined], ttftSlo } = options;
  const ttftMsMax = ttftSlo !== undefined && 'us' in ttftSlo ? ttftSlo.us / 1000 : ttftMsDefault;
  const sweeps: BudgetSweep[] = [];
  for (const budget of sparseBudget) {
    const runs: SweptRun[] = [];
    for (const number of clients.toSorted((a, b) => a - b)) {
      const one = { clients: [number], sparseBudget: budget === undefined ? undefined : [budget] };
      const name = sparseBudget.length > 1 ? `${budget}-${number}` : `${number}`;
      const { outcome } = await runSimulation(withOutputsOf({ ...options, ...one }, name));
      runs.push(sweptRun(outcome, number, ttftMsMax));
    }
    sweeps.push({ budget, runs, stableClients: stableClientsOf(runs) });
  }
  return { ttftMsMax, sweeps };
}

/** True if the options ask for more than one loop. */
export function isSweep({ clients = [], sparseBudget = [], clientsPlot }: SimulationOptions): boolean {
  return clients.length > 1 || (clients.length > 0 && (sparseBudget.length > 1 || clientsPlot !== undefined));
}

function sweptRun(outcome: Outcome, clients: number, ttftMsMax: number): SweptRun {
  const { closedLoop, preemptions, refusedRequests: refused, tbtUs } = outcome;
  if (closedLoop === undefined || closedLoop.requests === 0)
    throw new UsageError(`Cannot measure ${clients} clients with so few requests: increase --requests`);
  const ttftMs = latencyMs(closedLoop.ttftUs);
  return {
    clients,
    outputTokensPerSecond: closedLoop.outputTokensPerSecond,
    ttftMs,
    tbtMs: latencyMs(tbtUs),
    preemptions,
    refused,
    isStable: preemptions + refused === 0 && ttftMs.p50 <= ttftMsMax,
  };
}

function stableClientsOf(runs: readonly SweptRun[]): number | undefined {
  const first = runs.findIndex(({ isStable }) => !isStable);
  const stable = first === -1 ? runs.length : first;
  return stable === 0 ? undefined : runs[stable - 1].clients;
}

/** 'full', '1,000 kept tokens' */
export function budgetName(budget: KvBudget | undefined): string {
  return typeof budget === 'number' ? `${readable(budget)} kept tokens` : 'all tokens kept';
}

export function printSweep({ sweeps, ttftMsMax }: ClientSweep): void {
  for (const { budget, runs, stableClients } of sweeps) {
    printTable(
      runs.map(({ ttftMs, tbtMs, isStable, outputTokensPerSecond, ...run }) => ({
        clients: run.clients,
        'tokens/s': Number(outputTokensPerSecond.toFixed(1)),
        ttftMsP50: Math.round(ttftMs.p50),
        ttftMsP99: Math.round(ttftMs.p99),
        tbtMsP50: Number(tbtMs.p50.toFixed(1)),
        preemptions: run.preemptions,
        refused: run.refused,
        stable: isStable ? 'yes' : 'no',
      })),
      `Closed loops, ${budgetName(budget)}: ${stableClients === undefined ? 'none is stable' : `stable up to ${stableClients} clients`}`,
    );
  }
  console.log(`Stable: no preemption, no refusal, median TTFT of at most ${readable(ttftMsMax)} ms`);
}
