// Translates the blocks that a step waits for into handles of native arrivals.

import type { RequestId } from '../../core/protocol/ids.ts';
import type { PendingBlocks } from '../../core/transfer/prefix-fetch/prefix-loads.ts';
import type { ArrivingKeys } from '../../util/step.ts';

/** A source of blocks: its arrivals handle; undefined if the blocks will not arrive. */
export interface ArrivalSource {
  arrivalsOf(id: RequestId): number | undefined;
}

/** No valid handle: handles start at 1. */
export const neverArrives = 2 ** 31 - 1;
const withinMsMax = 2 ** 31 - 1;

export function arrivingKeys(
  pending: readonly PendingBlocks[],
  ssd: ArrivalSource | undefined,
  peers: ArrivalSource | undefined,
): readonly ArrivingKeys[] {
  return pending.flatMap(({ place, id, sources, withinUs }) => {
    const withinMs = Math.min(withinMsMax, Math.ceil(withinUs / 1000));
    const arrivalSources = sources?.map((source) => (source === 'ssd' ? ssd : peers)) ?? [undefined];
    return arrivalSources.map((arrivalSource) => ({
      sequence: place,
      arrivals: arrivalSource?.arrivalsOf(id) ?? neverArrives,
      withinMs,
    }));
  });
}
