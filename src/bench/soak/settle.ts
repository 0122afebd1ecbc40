// The memory of an idle process, measured repeatedly until its allocators have released unused memory.
import { setTimeout as sleep } from 'node:timers/promises';

/** Memory of the server process, after a forced collection in its threads and a trim of its native heap. */
export interface ServerMemory {
  readonly residentBytes: number;
  readonly heapBytes: number;
}

/** One measurement is not enough: V8 shrinks its young generation only after seconds of few allocations. */
const unchangedTimes = 6;
const measurementsMax = 40;
/** Smaller relative changes are ignored. */
const noise = 0.001;

/** @returns the last measurement, once `unchangedTimes` consecutive ones gave no new minimum; undefined without `measure` */
export async function settledMemory(
  measure: (() => Promise<ServerMemory>) | undefined,
  quietMs: number,
  pause: (ms: number) => Promise<void> = sleep,
): Promise<ServerMemory | undefined> {
  let last = await measure?.();
  let low = last?.residentBytes ?? 0;
  let unchanged = 0;
  for (
    let measurements = 1;
    last !== undefined && unchanged < unchangedTimes && measurements < measurementsMax;
    measurements++
  ) {
    await pause(quietMs);
    last = await measure?.();
    const bytes = last?.residentBytes ?? 0;
    unchanged = bytes < low * (1 - noise) ? 0 : unchanged + 1;
    low = Math.min(low, bytes);
  }
  return last;
}
