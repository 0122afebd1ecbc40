// `kvasir simulate --chaos`: many seeds of random faults with every check on, and what of it all really happened.
import { addCounts, type LendingCounts, neverHappened, runLendingChaos } from '../sim/lending/chaos.ts';
import { printTable } from './table.ts';

export interface ChaosOptions {
  readonly seed: number;
  readonly seeds: number;
}

/** Failures told at most: one shows where to look, hundreds hide it. */
const failuresMax = 5;

/** Runs seeds `seed` to `seed + seeds - 1`. Sets exit code 1 when a rule broke, or when several seeds left a fault or a handler out. */
export function runChaos({ seed, seeds }: ChaosOptions, json: boolean): void {
  const started = performance.now();
  const failures: { seed: number; message: string; replay: string }[] = [];
  let counts: LendingCounts | undefined;
  let ran = 0;
  while (ran < seeds && failures.length < failuresMax) {
    const current = seed + ran++;
    try {
      const one = runLendingChaos(current);
      if (counts === undefined) counts = one;
      else addCounts(counts, one);
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      failures.push({ seed: current, message, replay: `kvasir simulate --chaos --seeds 1 --seed ${current}` });
    }
  }
  // One seed is a replay: it need not show everything.
  const never = counts === undefined || seeds === 1 ? [] : neverHappened(counts);
  const { faults, met, ...sums } = counts ?? { faults: new Map(), met: new Map() };
  const report = {
    seeds: ran,
    seed,
    failures,
    never,
    faults: Object.fromEntries(faults),
    handlers: Object.fromEntries([...met].sort(([a], [b]) => (a < b ? -1 : 1))),
    ...sums,
    wallSeconds: (performance.now() - started) / 1000,
  };
  if (failures.length + never.length > 0) process.exitCode = 1;
  if (json) console.log(JSON.stringify(report));
  else printReport(report);
}

function printReport({
  faults,
  handlers,
  failures,
  never,
  ...sums
}: {
  faults: Record<string, number>;
  handlers: Record<string, number>;
  failures: readonly { message: string; replay: string }[];
  never: readonly string[];
}): void {
  printTable(Object.entries(faults).map(([fault, injected]) => ({ fault, injected })));
  printTable(Object.entries(handlers).map(([handler, ran]) => ({ handler, ran })));
  printTable([sums]);
  for (const name of never) console.log(`Never happened: ${name}`);
  for (const { message, replay } of failures) console.log(`${message}\n  replay: ${replay}`);
}
