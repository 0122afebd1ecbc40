// What a step that begins has to wait for, by the native names of what brings it.

import type { RequestId } from '../../core/protocol/ids.ts';
import type { AwaitedBlocks } from '../../core/transfer/prefix-fetch/prefix-loads.ts';
import type { ArrivingKeys } from '../../util/step.ts';

/** Who brings blocks; undefined: they do not come. */
export interface ArrivalSource {
  arrivalsOf(id: RequestId): number | undefined;
}

/** Names nothing: handles are given out from 1 on. */
export const neverArrives = 2 ** 31 - 1;
const withinMsMax = 2 ** 31 - 1;

export function arrivingKeys(
  awaited: readonly AwaitedBlocks[],
  ssd: ArrivalSource | undefined,
  peers: ArrivalSource | undefined,
): readonly ArrivingKeys[] {
  return awaited.flatMap(({ place, id, sources, withinUs }) => {
    const withinMs = Math.min(withinMsMax, Math.ceil(withinUs / 1000));
    const bringers = sources?.map((source) => (source === 'ssd' ? ssd : peers)) ?? [undefined];
    return bringers.map((bringer) => ({
      sequence: place,
      arrivals: bringer?.arrivalsOf(id) ?? neverArrives,
      withinMs,
    }));
  });
}
