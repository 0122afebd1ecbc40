// One prompt at one member of a pipeline: which chunks have arrived, and how far the member has computed.

import type { Activations, PipelineGroup } from '../protocol/events.ts';
import type { InstanceIndex } from '../protocol/ids.ts';
import { type LayerRange, rangeAt } from '../protocol/step-shape.ts';
import { scoredRowsMax } from '../scheduler/batching/step-budget.ts';
import type { RunningRequest } from '../scheduler/executor/executor.ts';

export interface PipelineStage<Request, S> {
  readonly request: Request;
  readonly running: S;
  readonly group: PipelineGroup;
  /** Position in the group. */
  readonly index: number;
  /** Leading tokens whose activations are here. */
  ready: number;
  /** Leading tokens whose activations are here or in transit: a step over them waits. */
  announced: number;
  /** Chunks that arrived out of order: first token to end. */
  readonly chunks: Map<number, number>;
  /** Its blocks are allocated. */
  began: boolean;
  /** Leading tokens whose keys and values of these layers are cached; undefined: they are in transit. */
  cachedTokens: number | undefined;
  /** At the first member: members that have not joined, itself included. */
  readonly joining: Set<InstanceIndex>;
  /** At the first member: the prefix that all joined members have. */
  commonTokens: number;
}

/** Computation starts behind the first `tokens` tokens. */
export function startBehind(stage: PipelineStage<unknown, RunningRequest>, tokens: number): void {
  const { sequence } = stage.running;
  sequence.computed = tokens;
  sequence.cachedTokens = tokens;
  stage.ready = tokens;
}

/** The activations of a chunk have arrived, possibly out of order. False: the stage does not need them. */
export function receiveChunk(
  stage: PipelineStage<unknown, RunningRequest>,
  { from, tokens, cachedTokens }: Activations,
): boolean {
  if (stage.index === 0 || stage.ready >= tokens) return false;
  startOnce(stage, cachedTokens);
  stage.chunks.set(from, tokens);
  advanceTo(stage, stage.ready);
  return true;
}

/** The previous member computes the chunk now. False: the chunk is here, is not needed, or an earlier one is missing. */
export function announceChunk(
  stage: PipelineStage<unknown, RunningRequest>,
  { from, tokens, cachedTokens }: Activations,
): boolean {
  if (stage.index === 0) return false;
  startOnce(stage, cachedTokens);
  const known = Math.max(stage.ready, stage.announced);
  if (from > known || tokens <= known) return false;
  stage.announced = tokens;
  return true;
}

/** The first `tokens` tokens are here, and the chunks that follow them without a gap. */
export function advanceTo(stage: PipelineStage<unknown, RunningRequest>, tokens: number): void {
  stage.ready = Math.max(stage.ready, tokens);
  for (let next = stage.chunks.get(stage.ready); next !== undefined; next = stage.chunks.get(stage.ready)) {
    stage.chunks.delete(stage.ready);
    stage.ready = next;
  }
}

/** The first chunk that is announced or received determines where computation starts. */
function startOnce(stage: PipelineStage<unknown, RunningRequest>, cachedTokens: number): void {
  if (stage.ready === 0 && stage.announced === 0 && stage.chunks.size === 0) startBehind(stage, cachedTokens);
}

/** Rows of the next chunk: a scored prompt has as many scored rows in each as in a step of one instance, at every member alike. */
export function chunkRows({ group, running: { sequence } }: PipelineStage<unknown, RunningRequest>): number {
  if (sequence.scoredTo === 0) return group.chunkTokens;
  return Math.min(group.chunkTokens, Math.max(0, sequence.scored - sequence.computed) + scoredRowsMax);
}

/** The next member, and the chunk up to `tokens` that it receives; undefined: this is the last member. */
export function nextMemberOf({ group, index, running }: PipelineStage<unknown, RunningRequest>, tokens: number) {
  if (index === group.members.length - 1) return undefined;
  const { computed: from, cachedTokens = 0 } = running.sequence;
  return { to: group.members[index + 1], chunk: { from, tokens, cachedTokens } };
}

export function rangeOf({ group, index }: Pick<PipelineStage<unknown, unknown>, 'group' | 'index'>): LayerRange {
  return rangeAt(index, group.members.length, group.layers);
}
