// What a process at rest holds: measured again and again until its allocators have given back what nobody uses.
import { setTimeout as sleep } from 'node:timers/promises';

/** Of the server process, after a forced collection in its threads and a trim of its native heap. */
export interface ServerMemory {
  readonly residentBytes: number;
  readonly heapBytes: number;
}

/** V8 shrinks a young generation only at a collection that follows seconds of few allocations, so one collection is not enough. */
const unchangedTimes = 6;
const triesMax = 40;
/** Less than this share is no change. */
const noise = 0.001;

/** @returns the last of measurements `quietMs` apart, once `unchangedTimes` of them brought no new low; undefined without `measure` */
export async function settled(
  measure: (() => Promise<ServerMemory>) | undefined,
  quietMs: number,
  pause: (ms: number) => Promise<void> = sleep,
): Promise<ServerMemory | undefined> {
  let last = await measure?.();
  let low = last?.residentBytes ?? 0;
  let unchanged = 0;
  for (let tries = 1; last !== undefined && unchanged < unchangedTimes && tries < triesMax; tries++) {
    await pause(quietMs);
    last = await measure?.();
    const bytes = last?.residentBytes ?? 0;
    unchanged = bytes < low * (1 - noise) ? 0 : unchanged + 1;
    low = Math.min(low, bytes);
  }
  return last;
}
