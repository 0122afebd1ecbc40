// `kvasir simulate --clients 1,8,16`: one closed loop for each number of clients, and the largest one that is stable.
import { latencyMs } from '../../sim/report/histogram.ts';
import type { Outcome } from '../../sim/report/outcome.ts';
import { readable } from '../terminal/fields.ts';
import { printTable } from '../terminal/table.ts';
import { UsageError } from '../usage-error.ts';
import { runSimulation, type SimulationOptions } from './simulated-run.ts';

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

export interface ClientSweep {
  readonly runs: readonly SweptRun[];
  /** The largest number of clients up to which every run is stable; undefined: the first one is not. */
  readonly stableClients: number | undefined;
  readonly ttftMsMax: number;
}

/** Runs one loop after another. @throws UsageError if a run has too few requests for its clients */
export async function sweepClients(options: SimulationOptions): Promise<ClientSweep> {
  const { clients = [], ttftSlo } = options;
  const ttftMsMax = ttftSlo !== undefined && 'us' in ttftSlo ? ttftSlo.us / 1000 : ttftMsDefault;
  const runs: SweptRun[] = [];
  for (const number of clients.toSorted((a, b) => a - b)) {
    const { outcome } = await runSimulation({ ...options, clients: [number] });
    runs.push(sweptRun(outcome, number, ttftMsMax));
  }
  return { runs, stableClients: stableClientsOf(runs), ttftMsMax };
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
  return runs.at(first === -1 ? -1 : first - 1 - runs.length)?.clients;
}

export function printSweep({ runs, stableClients, ttftMsMax }: ClientSweep): void {
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
    'Closed loops',
  );
  const bounds = `no preemption, no refusal, median TTFT of at most ${readable(ttftMsMax)} ms`;
  if (stableClients === undefined) console.log(`Unstable with ${runs[0].clients} clients (stable: ${bounds})`);
  else console.log(`Stable up to ${stableClients} clients: ${bounds}`);
}
