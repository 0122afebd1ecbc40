// Why a request went to its instance, in one sentence from the figures of the routing decision.
import type { PlacementCandidate, PlacementTrace } from '../../core/protocol/request-trace.ts';

/** @param place name of the instance */
export function placementReason(placement: PlacementTrace, place: (instance: number) => string): string {
  const { instance, candidates, group, inline, decodeAt, fetchedFrom, fetchedTokens } = placement;
  if (instance === undefined)
    return candidates.length === 0 ? 'no instance is up' : 'a batch job waits for free memory';
  const details = [];
  if (fetchedFrom !== undefined)
    details.push(`it fetches ${fetchedTokens} tokens of the prefix from ${place(fetchedFrom)}`);
  if (group !== undefined) details.push(`${group.length} instances compute the prompt as a pipeline`);
  if (inline) details.push('the decode instance computes the short rest of the prompt itself');
  else if (decodeAt !== undefined) details.push(`${place(decodeAt)} decodes`);
  return [`${place(instance)}: ${choiceOf(placement, place)}`, ...details].join('; ');
}

const ttftUs = ({ queueUs, prefillUs }: PlacementCandidate): number => queueUs + prefillUs;

function choiceOf({ instance, candidates }: PlacementTrace, place: (instance: number) => string): string {
  const chosen = candidates.find((candidate) => candidate.instance === instance);
  if (chosen === undefined) return 'the decode instance computes the prompt';
  const times = `wait ${ms(chosen.queueUs)} + prefill ${ms(chosen.prefillUs)}`;
  const cached = chosen.matchedTokens > 0 ? `, ${chosen.matchedTokens} tokens cached` : '';
  if (candidates.length === 1) return `the only instance that computes prompts (${times}${cached})`;
  let next: PlacementCandidate | undefined;
  for (const candidate of candidates)
    if (candidate !== chosen && (next === undefined || ttftUs(candidate) < ttftUs(next))) next = candidate;
  const other = next === undefined ? '' : `; ${place(next.instance)} had ${ms(ttftUs(next))}`;
  if (next === undefined || ttftUs(chosen) <= ttftUs(next))
    return `lowest predicted TTFT of ${candidates.length} instances (${times}${cached}${other})`;
  return `chosen over a lower wait plus prefill, because of transfers, reads from SSD or the policy (${times}${cached}${other})`;
}

function ms(us: number): string {
  if (us < 1000) return `${Math.round(us)} µs`;
  return us < 1e6 ? `${Number((us / 1000).toPrecision(3))} ms` : `${Number((us / 1e6).toPrecision(3))} s`;
}
