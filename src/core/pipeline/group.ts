// Decides whether a group of instances computes a prompt as a pipeline, and which one (Mooncake, section 5.1).
import type { ClusterView } from '../protocol/cluster-view.ts';
import { type PipelinedPrefill, type PipelineMembers, type PipelinePlan, planTogether } from './pipelined-prefill.ts';
import { splitLayers } from './split.ts';

export interface PipelineSettings {
  /** Members of a group, at least 2. */
  readonly members: number;
  /** Prompts with more tokens to compute than this are considered. */
  readonly tokensOver: number;
}

export interface GroupChoice extends PipelinePlan {
  /** In the order of their layers; the member that is free first comes first. */
  readonly members: readonly number[];
  /** (members): layers that each one runs; undefined: equal shares. */
  readonly layers: readonly number[] | undefined;
  /** Until the last member is free, and until the prefix is there. */
  readonly queueUs: number;
  readonly waitUs: number;
  /** Prefix that is not computed; undefined: all is computed. */
  readonly prefix: KnownPrefix | undefined;
  /** Time that the prefix saves: when it is late by more, computing is faster. */
  readonly savedUs: number;
}

/** A cached prefix of the prompt. */
export interface KnownPrefix {
  readonly tokens: number;
  readonly blocks: number;
  /** The instance that sends what members lack of it; undefined: none. */
  readonly from: number | undefined;
  /** Until each member has its layers of it. */
  readonly transferUs: number;
}

/** Prediction for the best single instance. */
interface Alone {
  readonly waitUs: number;
  readonly prefillUs: number;
  /** Prompt tokens that it has cached or fetches. */
  readonly cachedTokens: number;
}

/** The instances that could be members. */
export interface GroupView extends ClusterView {
  /** (instances): prefills in progress. */
  readonly pending: ArrayLike<number>;
  /** (kinds): predictions for members of one kind. */
  readonly prefills: readonly PipelinedPrefill[];
  /** Prefixes of the prompt that these members have or can fetch. */
  readonly prefixes: (members: readonly number[]) => readonly KnownPrefix[];
}

/**
 * The members that are free first, of one kind or of any, if their first token comes earlier than that of one instance alone. The time that
 * they work longer in all, because chunks are smaller, counts once for every prompt that waits for them.
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

/** Of each kind, and of all kinds together, the instances that are free first; among equals, the faster ones. */
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
