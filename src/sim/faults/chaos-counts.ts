// Coverage of chaos runs: injected faults, handled message anomalies, and totals; and the coverage required of a soak.
import type { FaultName } from './fault-plan.ts';

export interface ChaosCounts<Total extends string = string> {
  readonly faults: ReadonlyMap<FaultName, number>;
  /** By `anomaly message`: runs of the handler for it. */
  readonly anomalies: ReadonlyMap<string, number>;
  readonly totals: Readonly<Record<Total, number>>;
}

/** One kind of chaos world. */
export interface ChaosKind<Total extends string = string> {
  readonly name: string;
  /** Runs the world of a seed to its end. @throws Error on the first broken rule */
  run(seed: number): ChaosCounts<Total>;
  /** The coverage required of a soak: each at least once. */
  readonly faults: readonly FaultName[];
  readonly handlers: readonly string[];
  readonly totals: readonly Total[];
}

export function addCounts<Total extends string>(a: ChaosCounts<Total>, b: ChaosCounts<Total>): ChaosCounts<Total> {
  const totals: Record<Total, number> = { ...a.totals };
  for (const name of Object.keys(totals) as Total[]) totals[name] += b.totals[name];
  return { faults: sumOf(a.faults, b.faults), anomalies: sumOf(a.anomalies, b.anomalies), totals };
}

function sumOf<Key>(a: ReadonlyMap<Key, number>, b: ReadonlyMap<Key, number>): ReadonlyMap<Key, number> {
  const sum = new Map(a);
  for (const [key, count] of b) sum.set(key, (sum.get(key) ?? 0) + count);
  return sum;
}

/** Totals that stayed 0, faults that were not injected and handlers that did not run. */
export function uncovered<Total extends string>(
  { faults, handlers, totals }: Pick<ChaosKind<Total>, 'faults' | 'handlers' | 'totals'>,
  counts: ChaosCounts<Total>,
): readonly string[] {
  return [
    ...totals.filter((name) => counts.totals[name] === 0),
    ...faults.filter((name) => !counts.faults.has(name)),
    ...handlers.filter((name) => !counts.anomalies.has(name)),
  ];
}
