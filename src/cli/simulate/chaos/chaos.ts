// `kvasir simulate --chaos`: many seeds of random faults with every check on, and counts of the faults and handlers that
// occurred. Seeds run on as many threads as there are cores.
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';
import { type ChaosCounts, type ChaosKind, uncovered } from '../../../sim/faults/chaos-counts.ts';
import { counted, readable } from '../../terminal/fields.ts';
import { printList, printTable } from '../../terminal/table.ts';
import { type ChaosFailure, chaosKinds, joinOutcomes, runSeeds, SeedQueue, type SeedsOutcome } from './chaos-seeds.ts';

export interface ChaosOptions {
  readonly seed: number;
  readonly seeds: number;
}

interface Failure extends ChaosFailure {
  readonly replay: string;
}

/** Seeds that are worth a thread: they take longer than its start. */
const seedsOfThread = 16;

const workerEntry = new URL('./chaos-worker.js', import.meta.url);

/**
 * Runs seeds `seed` to `seed + seeds - 1`. Sets exit code 1 when a check failed, or when several seeds together missed a
 * fault or a handler.
 */
export async function runChaos({ seed, seeds }: ChaosOptions, json: boolean): Promise<void> {
  const started = performance.now();
  const { seeds: ran, failures, counts } = await runOnThreads(SeedQueue.of(seed, seeds));
  const isReplay = seeds === 1;
  const report = {
    ...{ seeds: ran, seed },
    failures: failures.map((failure) => ({
      ...failure,
      replay: `kvasir simulate --chaos --seeds 1 --seed ${failure.seed}`,
    })),
    lending: worldReport(chaosKinds.lending, counts.lending, isReplay),
    requests: worldReport(chaosKinds.requests, counts.requests, isReplay),
    attentionWorkers: worldReport(chaosKinds.attentionWorkers, counts.attentionWorkers, isReplay),
    membership: worldReport(chaosKinds.membership, counts.membership, isReplay),
    wallSeconds: (performance.now() - started) / 1000,
  };
  const worlds = [report.lending, report.requests, report.attentionWorkers, report.membership];
  const never = worlds.flatMap((world) => world.never);
  if (failures.length + never.length > 0) process.exitCode = 1;
  if (json) console.log(JSON.stringify(report));
  else printReport(report);
}

/** On the calling thread alone for few seeds, on one core, and from sources that are not compiled. */
async function runOnThreads(queue: SeedQueue): Promise<SeedsOutcome> {
  const threads = Math.min(availableParallelism(), Math.ceil(queue.shared.count / seedsOfThread));
  if (threads <= 1 || !existsSync(workerEntry)) return runSeeds(queue);
  const workers = Array.from({ length: threads }, () => new Worker(workerEntry, { workerData: queue.shared }));
  try {
    const outcomes = await Promise.all(workers.map(outcomeOf));
    return outcomes.reduce(joinOutcomes);
  } finally {
    // If one thread fails, the others would run all seeds that are left.
    await Promise.all(workers.map((worker) => worker.terminate()));
  }
}

function outcomeOf(worker: Worker): Promise<SeedsOutcome> {
  return new Promise((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', reject);
    worker.once('exit', (code) =>
      reject(new Error(`Cannot run chaos seeds: their thread has ended: exit code ${code}`)),
    );
  });
}

function worldReport(kind: ChaosKind, counts: ChaosCounts | undefined, isReplay: boolean) {
  const { faults, anomalies, totals } = counts ?? { faults: [], anomalies: [], totals: {} };
  const byName = [...anomalies].sort(([a], [b]) => (a < b ? -1 : 1));
  // One seed is a replay, which need not show every fault.
  const never = counts === undefined || isReplay ? [] : uncovered(kind, counts);
  const byFault = [...faults].sort(([a], [b]) => (a < b ? -1 : 1));
  return { faults: Object.fromEntries(byFault), handlers: Object.fromEntries(byName), never, ...totals };
}

type WorldReport = ReturnType<typeof worldReport>;

interface ChaosReport {
  readonly failures: readonly Failure[];
  readonly lending: WorldReport;
  readonly requests: WorldReport;
  readonly attentionWorkers: WorldReport;
  readonly membership: WorldReport;
  readonly seeds: number;
  readonly wallSeconds: number;
}

function printReport({ failures, lending, requests, attentionWorkers, membership, ...figures }: ChaosReport): void {
  const worlds = {
    ...{ Lending: lending, Requests: requests },
    ...{ 'Attention workers': attentionWorkers, Membership: membership },
  };
  for (const [subject, { faults, handlers, never, ...sums }] of Object.entries(worlds)) {
    const entriesOf = (counts: Readonly<Record<string, number>>) =>
      Object.entries(counts).map(([name, count]) => [name, readable(count)] as const);
    printList(`${subject}: injected faults`, entriesOf(faults));
    printList(`${subject}: fault handlers that ran`, entriesOf(handlers));
    printTable([sums], `${subject}: outcomes`);
    for (const name of never) console.log(`Never happened in ${subject.toLowerCase()}: ${name}`);
  }
  console.log(
    `${counted(figures.seeds, 'seed')} in ${readable(figures.wallSeconds)} s: ${counted(failures.length, 'failure')}`,
  );
  for (const { message, replay } of failures) console.log(`${message}\n  replay: ${replay}`);
}
