// Whether a group of instances computes a prompt together, and which: chunked pipeline prefill (Mooncake, section 5.1).
import type { ClusterView } from '../placement/placement.ts';
import type { PipelinedPrefill, PipelinePlan } from './pipelined-prefill.ts';

export interface PipelineSettings {
  /** Of a group: 2 or more. */
  readonly members: number;
  /** Prompts with more tokens than this are looked at. */
  readonly tokensOver: number;
}

export interface GroupChoice extends PipelinePlan {
  /** In the order of their layers; the first is free first. */
  readonly members: readonly number[];
  /** Until the last of them is free. */
  readonly queueUs: number;
}

/**
 * The members that are free first, of one kind, if the first token comes sooner from them than from one instance alone. They compute the whole
 * prompt: what one of them has cached is of no use to the others.
 * @param aloneUs until the first token from the best single instance, its queue and what it has cached counted
 */
export function chooseGroup(
  tokens: number,
  aloneUs: number,
  { up, kind, queueUs }: ClusterView,
  { members, tokensOver }: PipelineSettings,
  prefills: readonly PipelinedPrefill[],
): GroupChoice | undefined {
  if (tokens <= tokensOver) return undefined;
  let best: GroupChoice | undefined;
  let bestUs = aloneUs;
  for (let k = 0; k < prefills.length; k++) {
    const alike: number[] = [];
    for (let i = 0; i < up.length; i++) if (up[i] === 1 && kind[i] === k) alike.push(i);
    if (alike.length < members) continue;
    alike.sort((a, b) => queueUs[a] - queueUs[b] || a - b);
    alike.length = members;
    const waitUs = queueUs[alike[members - 1]];
    const plan = prefills[k].plan(tokens, members);
    if (waitUs + plan.prefillUs >= bestUs) continue;
    best = { ...plan, members: alike, queueUs: waitUs };
    bestUs = waitUs + plan.prefillUs;
  }
  return best;
}
