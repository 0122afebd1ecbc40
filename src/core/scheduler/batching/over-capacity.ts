// Of an instance's sequences, those that no memory here could hold: who waits, and who runs.
import type { FreeCapacity } from './free-capacity.ts';
import type { Sequence } from './sequence.ts';

interface Batch {
  readonly room: FreeCapacity;
  readonly running: readonly Sequence[];
  readonly waiting: readonly Sequence[];
}

/** Pages that the running ones still need. */
export function pagesPromised({ room, running }: Batch): number {
  return room.promised(running, running.length);
}

/** The first who waits, and the pages that it needs. */
export function firstGathering({
  room,
  waiting,
}: Batch): { readonly sequence: Sequence; readonly pages: number } | undefined {
  const sequence = waiting.find((each) => room.isOverlong(each) && !each.awaitsLanding);
  return sequence && { sequence, pages: room.pagesNeeded(sequence) };
}

/** How many run. */
export function gatheredCount({ room, running }: Batch): number {
  let count = 0;
  for (const sequence of running) if (room.isOverlong(sequence)) count++;
  return count;
}
