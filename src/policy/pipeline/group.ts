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
  /** Until the last of them is free, and what they use of the prefix is there. */
  readonly queueUs: number;
  readonly waitUs: number;
  /** Leading tokens that they do not compute. */
  readonly cachedTokens: number;
}

/** What some instance has of the prompt. */
export interface KnownPrefix {
  readonly tokens: number;
  /** Until each of the members has its layers of it. */
  readonly transferUs: (members: readonly number[]) => number;
}

/** What the best single instance would do. */
interface Alone {
  readonly waitUs: number;
  readonly prefillUs: number;
  /** Of the prompt, by what it has or fetches. */
  readonly cachedTokens: number;
}

/**
 * The members that are free first, of one kind, if the first token comes sooner from them than from one instance alone. What they work longer
 * together than that one would (chunks are smaller) counts as often as there are others to wait for it.
 * @param pending (instances): prefills that were sent and have not ended
 */
export function chooseGroup(
  tokens: number,
  { waitUs, prefillUs, cachedTokens }: Alone,
  { up, kind, queueUs }: ClusterView,
  pending: ArrayLike<number>,
  { members, tokensOver }: PipelineSettings,
  prefills: readonly PipelinedPrefill[],
  prefix: KnownPrefix | undefined,
): GroupChoice | undefined {
  if (tokens - cachedTokens <= tokensOver) return undefined;
  let best: GroupChoice | undefined;
  let bestUs = waitUs + prefillUs;
  for (let k = 0; k < prefills.length; k++) {
    const alike: number[] = [];
    for (let i = 0; i < up.length; i++) if (up[i] === 1 && kind[i] === k) alike.push(i);
    if (alike.length < members) continue;
    alike.sort((a, b) => queueUs[a] - queueUs[b] || a - b);
    alike.length = members;
    const groupQueueUs = queueUs[alike[members - 1]];
    const others = alike.reduce((sum, i) => sum + pending[i], 0);
    for (const known of prefix === undefined ? [nothingKnown] : [prefix, nothingKnown]) {
      const plan = prefills[k].plan({ tokens, cachedTokens: known.tokens, members, others });
      const groupWaitUs = Math.max(groupQueueUs, known.transferUs(alike));
      const us = groupWaitUs + plan.prefillUs + others * Math.max(0, plan.workUs - prefillUs / members);
      if (us >= bestUs) continue;
      best = { ...plan, members: alike, queueUs: groupQueueUs, waitUs: groupWaitUs, cachedTokens: known.tokens };
      bestUs = us;
    }
  }
  return best;
}

const nothingKnown: KnownPrefix = { tokens: 0, transferUs: () => 0 };
