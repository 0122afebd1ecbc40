// `kvasir simulate --chaos`: many seeds of random faults with every check on, and counts of the faults and handlers that occurred.
import { addCounts, type ChaosCounts, type ChaosKind, uncovered } from '../../sim/faults/chaos-counts.ts';
import { lendingChaos } from '../../sim/faults/lending-chaos.ts';
import { membershipChaos } from '../../sim/faults/membership-chaos.ts';
import { requestChaos } from '../../sim/faults/request-chaos.ts';
import { workerChaos } from '../../sim/faults/worker-chaos.ts';
import { counted, readable } from '../terminal/fields.ts';
import { printList, printTable } from '../terminal/table.ts';

export interface ChaosOptions {
  readonly seed: number;
  readonly seeds: number;
}

/** Failures reported at most: a few show where to look. */
const failuresMax = 5;

interface Failure {
  readonly seed: number;
  readonly message: string;
  readonly replay: string;
}

/** Counts of one kind of world over all seeds. */
class WorldCounts<Total extends string> {
  readonly #kind: ChaosKind<Total>;
  #counts: ChaosCounts<Total> | undefined;

  constructor(kind: ChaosKind<Total>) {
    this.#kind = kind;
  }

  run(seed: number): void {
    const counts = this.#kind.run(seed);
    this.#counts = this.#counts === undefined ? counts : addCounts(this.#counts, counts);
  }

  report(isReplay: boolean) {
    const { faults, anomalies, totals } = this.#counts ?? { faults: [], anomalies: [], totals: {} };
    const byName = [...anomalies].sort(([a], [b]) => (a < b ? -1 : 1));
    // One seed is a replay, which need not show every fault.
    const never = this.#counts === undefined || isReplay ? [] : uncovered(this.#kind, this.#counts);
    return { faults: Object.fromEntries(faults), handlers: Object.fromEntries(byName), never, ...totals };
  }
}

/** Runs seeds `seed` to `seed + seeds - 1`. Sets exit code 1 when a check failed, or when several seeds together missed a fault or a handler. */
export function runChaos({ seed, seeds }: ChaosOptions, json: boolean): void {
  const started = performance.now();
  const lending = new WorldCounts(lendingChaos);
  const requests = new WorldCounts(requestChaos);
  const attentionWorkers = new WorldCounts(workerChaos);
  const membership = new WorldCounts(membershipChaos);
  const failures: Failure[] = [];
  let ran = 0;
  while (ran < seeds && failures.length < failuresMax) {
    const current = seed + ran++;
    for (const world of [lending, requests, attentionWorkers, membership]) {
      try {
        world.run(current);
      } catch (error) {
        const message = error instanceof Error ? error.message : String(error);
        failures.push({ seed: current, message, replay: `kvasir simulate --chaos --seeds 1 --seed ${current}` });
      }
    }
  }
  const report = {
    ...{ seeds: ran, seed, failures },
    lending: lending.report(seeds === 1),
    requests: requests.report(seeds === 1),
    attentionWorkers: attentionWorkers.report(seeds === 1),
    membership: membership.report(seeds === 1),
    wallSeconds: (performance.now() - started) / 1000,
  };
  const worlds = [report.lending, report.requests, report.attentionWorkers, report.membership];
  const never = worlds.flatMap((world) => world.never);
  if (failures.length + never.length > 0) process.exitCode = 1;
  if (json) console.log(JSON.stringify(report));
  else printReport(report);
}

type WorldReport = ReturnType<WorldCounts<string>['report']>;

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
