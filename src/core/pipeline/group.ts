// Selects the pipeline group that computes a prompt, if a group is faster than one instance (Mooncake, section 5.1).
import type { ClusterView } from '../protocol/cluster-view.ts';
import { type PipelineMembers, type PipelinePlan, type PipelinePredictor, planGroup } from './pipeline-predictor.ts';
import { splitLayers } from './split.ts';

export interface PipelineSettings {
  /** Members of a group, at least 2. */
  readonly members: number;
  /** Prompts with more tokens to compute than this are considered. */
  readonly tokensOver: number;
  /** Requests have a KV budget unless they ask for full KV: one instance computes their prompts. */
  readonly budgetByDefault?: boolean | undefined;
}

export interface GroupChoice extends PipelinePlan {
  /** In the order of their layers; the member that is free first comes first. */
  readonly members: readonly number[];
  /** (members): layers that each one runs; undefined: equal shares. */
  readonly layers: readonly number[] | undefined;
  /** Until the last member is free. */
  readonly queueUs: number;
  /** Until the last member is free and the prefix has arrived. */
  readonly waitUs: number;
  /** The prefix that is not computed; undefined: all is computed. */
  readonly prefix: KnownPrefix | undefined;
  /** Time that the prefix saves: if it is later than that, computing it is faster. */
  readonly savedUs: number;
}

/** A cached prefix of the prompt. */
export interface KnownPrefix {
  readonly tokens: number;
  readonly blocks: number;
  /** The instance that sends the blocks that members lack; undefined: none. */
  readonly from: number | undefined;
  /** Until each member has received its layers of it. */
  readonly transferUs: number;
}

/** Prediction for the best single instance. */
interface SinglePrefill {
  readonly waitUs: number;
  readonly prefillUs: number;
  /** Prompt tokens that it has cached or fetches. */
  readonly cachedTokens: number;
}

/** The instances that may be members. */
export interface GroupView extends ClusterView {
  /** (instances): prefills in progress. */
  readonly pending: ArrayLike<number>;
  /** (kinds): predictions for members of one kind. */
  readonly predictors: readonly PipelinePredictor[];
  /** Prefixes of the prompt that these members have cached or can fetch. */
  readonly prefixes: (members: readonly number[]) => readonly KnownPrefix[];
}

/**
 * The members that are free first, of one kind or of any, if their first token is earlier than that of one instance. Smaller chunks make
 * members work longer in all: that time counts once for every prompt that waits for them.
 */
export function chooseGroup(
  tokens: number,
  { waitUs, prefillUs, cachedTokens }: SinglePrefill,
  view: GroupView,
  { members, tokensOver }: PipelineSettings,
): GroupChoice | undefined {
  if (tokens - cachedTokens <= tokensOver) return undefined;
  const { queueUs, pending, prefixes } = view;
  let best: GroupChoice | undefined;
  let bestUs = waitUs + prefillUs;
  for (const candidate of candidates(view, members)) {
    const lastFreeUs = queueUs[candidate.members[members - 1]];
    const others = candidate.members.reduce((sum, i) => sum + pending[i], 0);
    const whole = planGroup(candidate, { tokens, cachedTokens: 0, members, others });
    for (const prefix of [...prefixes(candidate.members), undefined]) {
      const rest = { tokens, cachedTokens: prefix?.tokens ?? 0, members, others };
      const plan = prefix === undefined ? whole : planGroup(candidate, rest);
      const startsUs = Math.max(lastFreeUs, prefix?.transferUs ?? 0);
      const us = startsUs + plan.prefillUs + others * Math.max(0, plan.workUs - prefillUs / members);
      if (us >= bestUs) continue;
      const savedUs = Math.max(0, whole.prefillUs - plan.prefillUs);
      const { members: chosen, layers } = candidate;
      best = { ...plan, members: chosen, layers, queueUs: lastFreeUs, waitUs: startsUs, prefix, savedUs };
      bestUs = us;
    }
  }
  return best;
}

interface Candidate extends PipelineMembers {
  readonly members: readonly number[];
}

/** Of each kind, and of all kinds together, the instances that are free first; among equals, the faster ones. */
function candidates({ up, kind, queueUs, predictors }: GroupView, members: number): readonly Candidate[] {
  const all: number[] = [];
  for (let i = 0; i < up.length; i++) if (up[i] === 1) all.push(i);
  const layerUs = predictors.map((predictor) => predictor.layerUs);
  const freeFirst = (a: number, b: number) => queueUs[a] - queueUs[b] || layerUs[kind[a]] - layerUs[kind[b]] || a - b;
  const first = (some: readonly number[]) => some.toSorted(freeFirst).slice(0, members);
  const kinds = [...new Set(all.map((i) => kind[i]))].sort((a, b) => a - b);
  const chosen = kinds.map((k) => first(all.filter((i) => kind[i] === k)));
  const mixed = first(all);
  if (mixed.some((i) => kind[i] !== kind[mixed[0]])) chosen.push(mixed);
  return chosen.flatMap((some) => {
    if (some.length < members) return [];
    const own = some.map((i) => predictors[kind[i]]);
    const layers = splitLayers(
      own[0].layers,
      some.map((i) => layerUs[kind[i]]),
    );
    return [{ members: some, predictors: own, layers }];
  });
}
