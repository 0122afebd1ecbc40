// Chaos worlds of seeds that several threads take one after another, with counts that do not depend on the threads.
import { addCounts, type ChaosCounts, type ChaosKind } from '../../../sim/faults/chaos-counts.ts';
import { lendingChaos } from '../../../sim/faults/lending-chaos.ts';
import { membershipChaos } from '../../../sim/faults/membership-chaos.ts';
import { requestChaos } from '../../../sim/faults/request-chaos.ts';
import { workerChaos } from '../../../sim/faults/worker-chaos.ts';

/** Each seed runs one world of each kind. */
export const chaosKinds = {
  lending: lendingChaos,
  requests: requestChaos,
  attentionWorkers: workerChaos,
  membership: membershipChaos,
} as const satisfies Record<string, ChaosKind>;

export type ChaosKindName = keyof typeof chaosKinds;

const kindNames = Object.keys(chaosKinds) as ChaosKindName[];

/** After this many failures no thread takes another seed: a few show where to look. */
const failuresMax = 5;

export interface ChaosFailure {
  readonly seed: number;
  readonly message: string;
}

/** Undefined for a kind of which every world has failed. */
type KindCounts = { readonly [Name in ChaosKindName]?: ChaosCounts | undefined };

/** The result of several seeds: a plain value, which a thread can send. */
export interface SeedsOutcome {
  readonly seeds: number;
  readonly failures: readonly ChaosFailure[];
  readonly counts: KindCounts;
}

/** The seeds `first` to `first + count - 1`, each taken once. Threads share it: it can be sent as `shared`. */
export class SeedQueue {
  readonly shared: { readonly first: number; readonly count: number; readonly taken: Int32Array };

  constructor(shared: SeedQueue['shared']) {
    this.shared = shared;
  }

  static of(first: number, count: number): SeedQueue {
    return new SeedQueue({ first, count, taken: new Int32Array(new SharedArrayBuffer(8)) });
  }

  /** Undefined at the end, and after too many failures. */
  take(): number | undefined {
    const { first, count, taken } = this.shared;
    if (Atomics.load(taken, 1) >= failuresMax) return undefined;
    const index = Atomics.add(taken, 0, 1);
    return index < count ? first + index : undefined;
  }

  failed(): void {
    Atomics.add(this.shared.taken, 1, 1);
  }
}

/** Runs the worlds of seeds until the queue is empty. */
export function runSeeds(queue: SeedQueue): SeedsOutcome {
  const failures: ChaosFailure[] = [];
  const counts: { -readonly [Name in keyof KindCounts]: KindCounts[Name] } = {};
  let seeds = 0;
  for (let seed = queue.take(); seed !== undefined; seed = queue.take()) {
    seeds++;
    for (const name of kindNames) {
      try {
        counts[name] = sumOf(counts[name], chaosKinds[name].run(seed));
      } catch (error) {
        failures.push({ seed, message: error instanceof Error ? error.message : String(error) });
        queue.failed();
      }
    }
  }
  return { seeds, failures, counts };
}

/** One outcome for the seeds of both. */
export function joinOutcomes(a: SeedsOutcome, b: SeedsOutcome): SeedsOutcome {
  const counts: { -readonly [Name in keyof KindCounts]: KindCounts[Name] } = {};
  for (const name of kindNames) counts[name] = sumOf(a.counts[name], b.counts[name]);
  const failures = [...a.failures, ...b.failures].sort((one, other) => one.seed - other.seed);
  return { seeds: a.seeds + b.seeds, failures, counts };
}

function sumOf(a: ChaosCounts | undefined, b: ChaosCounts | undefined): ChaosCounts | undefined {
  return a === undefined || b === undefined ? (a ?? b) : addCounts(a, b);
}
