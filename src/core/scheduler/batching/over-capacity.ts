// Sequences over capacity: the pages of this instance cannot hold them.
import type { FreeCapacity } from './free-capacity.ts';
import type { Sequence } from './sequence.ts';

interface Batch {
  readonly room: FreeCapacity;
  readonly running: readonly Sequence[];
  readonly waiting: readonly Sequence[];
}

/** Pages that the running sequences still require. */
export function pagesPromised({ room, running }: Batch): number {
  return room.promised(running, running.length);
}

/** The first waiting sequence over capacity that reserves memory, and the pages that it requires. */
export function firstGathering({
  room,
  waiting,
}: Batch): { readonly sequence: Sequence; readonly pages: number } | undefined {
  const sequence = waiting.find((each) => room.isOverlong(each) && !each.awaitsLanding);
  return sequence && { sequence, pages: room.pagesNeeded(sequence) };
}

/** Number of running sequences over capacity. */
export function gatheredCount({ room, running }: Batch): number {
  let count = 0;
  for (const sequence of running) if (room.isOverlong(sequence)) count++;
  return count;
}
