// Whether a group of instances computes a prompt together, and which: chunked pipeline prefill (Mooncake, section 5.1).
import type { ClusterView } from '../protocol/cluster-view.ts';
import { type PipelinedPrefill, type PipelineMembers, type PipelinePlan, planTogether } from './pipelined-prefill.ts';
import { splitLayers } from './split.ts';

export interface PipelineSettings {
  /** Of a group: 2 or more. */
  readonly members: number;
  /** Prompts with more tokens than this are looked at. */
  readonly tokensOver: number;
}

export interface GroupChoice extends PipelinePlan {
  /** In the order of their layers; the first is free first. */
  readonly members: readonly number[];
  /** (members): how many layers each runs; undefined: as many. */
  readonly layers: readonly number[] | undefined;
  /** Until the last of them is free, and what they use of the prefix is there. */
  readonly queueUs: number;
  readonly waitUs: number;
  /** What they do not compute; undefined: all is computed. */
  readonly prefix: KnownPrefix | undefined;
  /** What that saves: after so much more than its time, computing would have been faster. */
  readonly savedUs: number;
}

/** Of the prompt, what some have. */
export interface KnownPrefix {
  readonly tokens: number;
  readonly blocks: number;
  /** Who sends what members lack of it; undefined: nobody. */
  readonly from: number | undefined;
  /** Until each of the members has its layers of it. */
  readonly transferUs: number;
}

/** What the best single instance would do. */
interface Alone {
  readonly waitUs: number;
  readonly prefillUs: number;
  /** Of the prompt, by what it has or fetches. */
  readonly cachedTokens: number;
}

/** What is known of those who could be members. */
export interface GroupView extends ClusterView {
  /** (instances): prefills that were sent and have not ended. */
  readonly pending: ArrayLike<number>;
  /** (kinds): the pipelines of members that are alike. */
  readonly prefills: readonly PipelinedPrefill[];
  /** What such members have of the prompt, or could get. */
  readonly prefixes: (members: readonly number[]) => readonly KnownPrefix[];
}

/**
 * The members that are free first, of one kind or of any, if the first token comes sooner from them than from one instance alone. What they
 * work longer together than that one would (chunks are smaller) counts as often as there are others to wait for it.
 */
export function chooseGroup(
  tokens: number,
  { waitUs, prefillUs, cachedTokens }: Alone,
  view: GroupView,
  { members, tokensOver }: PipelineSettings,
): GroupChoice | undefined {
  if (tokens - cachedTokens <= tokensOver) return undefined;
  const { queueUs, pending, prefixes } = view;
  let best: GroupChoice | undefined;
  let bestUs = waitUs + prefillUs;
  for (const team of teams(view, members)) {
    const lastFreeUs = queueUs[team.members[members - 1]];
    const others = team.members.reduce((sum, i) => sum + pending[i], 0);
    const whole = planTogether(team, { tokens, cachedTokens: 0, members, others });
    for (const prefix of [...prefixes(team.members), undefined]) {
      const rest = { tokens, cachedTokens: prefix?.tokens ?? 0, members, others };
      const plan = prefix === undefined ? whole : planTogether(team, rest);
      const startsUs = Math.max(lastFreeUs, prefix?.transferUs ?? 0);
      const us = startsUs + plan.prefillUs + others * Math.max(0, plan.workUs - prefillUs / members);
      if (us >= bestUs) continue;
      const savedUs = Math.max(0, whole.prefillUs - plan.prefillUs);
      const { members: chosen, layers } = team;
      best = { ...plan, members: chosen, layers, queueUs: lastFreeUs, waitUs: startsUs, prefix, savedUs };
      bestUs = us;
    }
  }
  return best;
}

interface Members extends PipelineMembers {
  readonly members: readonly number[];
}

/** Of each kind, and of all kinds together, those that are free first; of these the faster ones. */
function teams({ up, kind, queueUs, prefills }: GroupView, members: number): readonly Members[] {
  const all: number[] = [];
  for (let i = 0; i < up.length; i++) if (up[i] === 1) all.push(i);
  const layerUs = prefills.map((prefill) => prefill.layerUs);
  const freeFirst = (a: number, b: number) => queueUs[a] - queueUs[b] || layerUs[kind[a]] - layerUs[kind[b]] || a - b;
  const first = (some: readonly number[]) => some.toSorted(freeFirst).slice(0, members);
  const kinds = [...new Set(all.map((i) => kind[i]))].sort((a, b) => a - b);
  const chosen = kinds.map((k) => first(all.filter((i) => kind[i] === k)));
  const mixed = first(all);
  if (mixed.some((i) => kind[i] !== kind[mixed[0]])) chosen.push(mixed);
  return chosen.flatMap((some) => {
    if (some.length < members) return [];
    const own = some.map((i) => prefills[kind[i]]);
    const layers = splitLayers(
      own[0].layers,
      some.map((i) => layerUs[kind[i]]),
    );
    return [{ members: some, prefills: own, layers }];
  });
}
