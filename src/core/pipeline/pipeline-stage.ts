// A prompt of which an instance runs a range of the layers.

import type { Activations, PipelineGroup } from '../protocol/events.ts';
import type { InstanceIndex } from '../protocol/ids.ts';
import { type LayerRange, rangeAt } from '../protocol/step-shape.ts';
import type { RunningRequest } from '../scheduler/executor/executor.ts';

export interface PipelineStage<Request, S> {
  readonly request: Request;
  readonly served: S;
  readonly group: PipelineGroup;
  /** Its place in the group. */
  readonly index: number;
  /** Leading tokens whose inputs are here. */
  ready: number;
  /** Those whose inputs are here or on their way: a step waits for them. */
  coming: number;
  /** Chunks that have come before those before them: from, to. */
  readonly came: Map<number, number>;
  /** It keeps blocks. */
  began: boolean;
  /** Leading tokens whose keys and values are here, of its layers; undefined: they are on their way. */
  cachedTokens: number | undefined;
  /** Of the first one: members (itself among them) that have not said yet what they have, and what all others have at least. */
  readonly awaited: Set<InstanceIndex>;
  allHave: number;
}

/** What is before that is not computed. */
export function beginAt(stage: PipelineStage<unknown, RunningRequest>, tokens: number): void {
  const { sequence } = stage.served;
  sequence.computed = tokens;
  sequence.cachedTokens = tokens;
  stage.ready = tokens;
}

/** Inputs of a chunk are here; chunks may overtake one another. False: nobody waits for them. */
export function feedStage(
  stage: PipelineStage<unknown, RunningRequest>,
  { from, tokens, cachedTokens }: Activations,
): boolean {
  if (stage.index === 0 || stage.ready >= tokens) return false;
  beginOnce(stage, cachedTokens);
  stage.came.set(from, tokens);
  reach(stage, stage.ready);
  return true;
}

/** The member before this one computes that chunk now. False: it is here, or nobody waits for it, or for one before. */
export function comesTo(
  stage: PipelineStage<unknown, RunningRequest>,
  { from, tokens, cachedTokens }: Activations,
): boolean {
  if (stage.index === 0) return false;
  beginOnce(stage, cachedTokens);
  const known = Math.max(stage.ready, stage.coming);
  if (from > known || tokens <= known) return false;
  stage.coming = tokens;
  return true;
}

/** So much is computed, or has come, and what came before it. */
export function reach(stage: PipelineStage<unknown, RunningRequest>, tokens: number): void {
  stage.ready = Math.max(stage.ready, tokens);
  for (let next = stage.came.get(stage.ready); next !== undefined; next = stage.came.get(stage.ready)) {
    stage.came.delete(stage.ready);
    stage.ready = next;
  }
}

/** With the first chunk that is told of. */
function beginOnce(stage: PipelineStage<unknown, RunningRequest>, cachedTokens: number): void {
  if (stage.ready === 0 && stage.coming === 0 && stage.came.size === 0) beginAt(stage, cachedTokens);
}

/** Who is next, and what it hears of the chunk up to `tokens` that comes after what is computed; undefined: this is the last member. */
export function passesOf({ group, index, served }: PipelineStage<unknown, RunningRequest>, tokens: number) {
  if (index === group.members.length - 1) return undefined;
  const { computed: from, cachedTokens = 0 } = served.sequence;
  return { to: group.members[index + 1], chunk: { from, tokens, cachedTokens } };
}

export function rangeOf({ group, index }: Pick<PipelineStage<unknown, unknown>, 'group' | 'index'>): LayerRange {
  return rangeAt(index, group.members.length, group.layers);
}
