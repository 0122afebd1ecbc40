// What is kept of a request to explain it: where it went and why, what was predicted, and what came of it.

import type { Considered, PlacementAccount } from '../protocol/request-trace.ts';
import type { RoutingDecision } from './route-planner.ts';

export function accountOf(
  atUs: number,
  { decision, route, verdict, inlineTokens }: RoutingDecision,
  considered: readonly Considered[],
  blockTokens: number,
): PlacementAccount {
  return {
    atUs,
    considered,
    instance: route?.instance,
    decodeAt: route?.decodeAt,
    group: route?.group?.members,
    fetchedFrom: decision?.from,
    fetchedTokens: (decision?.fetchedBlocks ?? 0) * blockTokens,
    inline: inlineTokens > 0,
    waitUs: decision?.waitUs,
    prefillUs: decision?.prefillUs,
    predicted: verdict?.predicted,
  };
}
