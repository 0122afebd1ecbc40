// A step as the flat list of arguments that native/addon/programs.cc reads: both files change together.
import {
  type ArrivingKeys,
  type HeadReduce,
  needsLogits,
  type RowPages,
  type Step,
  type StepResult,
  type StepSampling,
  topLogprobsMax,
} from '../../util/step.ts';

export function createResult(rows: number): StepResult {
  return {
    tokens: new Int32Array(rows),
    logprobs: new Float32Array(rows),
    topTokens: new Int32Array(rows * topLogprobsMax),
    topLogprobs: new Float32Array(rows * topLogprobsMax),
    failed: new Uint8Array(rows),
    failedSequences: new Int32Array(0),
  };
}

/** A step behind its program; the addon checks types, lengths and every index. */
export function stepArguments(
  step: Step,
  result: StepResult,
  failedSequences: Uint8Array,
): (number | ArrayBufferView)[] {
  const list: (number | ArrayBufferView)[] = [step.tokens, step.positions, step.rowStart, step.logitRows];
  pushSampling(list, step.sampling);
  list.push(result.tokens, result.logprobs, result.topTokens, result.topLogprobs, result.failed);
  list.push(step.groups.length);
  for (const group of step.groups) {
    list.push(group.layers, group.pageTable, group.blocks, group.blockStart, group.firstBlock);
  }
  list.push(failedSequences);
  list.push(step.remote.length);
  for (const { sequence, group, firstBlock, server, loan, blocks } of step.remote)
    list.push(sequence, group, firstBlock, server, loan, blocks);
  const { arriving = nothing } = step;
  list.push(arriving.length);
  for (const { sequence, arrivals, withinMs } of arriving) list.push(sequence, arrivals, withinMs);
  const { rowsIn, rowsOut } = step;
  pushPages(list, rowsIn);
  if (rowsIn !== undefined) list.push(rowsIn.arrivals, rowsIn.withinMs);
  pushPages(list, rowsOut);
  list.push(step.attentionWorkers ?? noWorkers, step.sequenceWorkers ?? noWorkers);
  pushSparse(list, step);
  list.push(step.tokenTypes ?? none, Number(needsLogits(step)));
  return list;
}

const noMasks = { start: new Int32Array(0), words: new Uint32Array(0) };
const none = new Uint8Array(0);
const noWorkers = new Int32Array(0);
const nothing: readonly ArrivingKeys[] = [];

/** One flag for each sequence; empty if every sequence has all its keys and rows. */
export function failedFlags(step: Step): Uint8Array {
  const waitsFor = step.remote.length + (step.arriving?.length ?? 0) + (step.attentionWorkers?.length ?? 0);
  const canFail = waitsFor > 0 || step.rowsIn !== undefined;
  return canFail ? new Uint8Array(step.rowStart.length - 1) : none;
}

export function withFailedSequences(result: StepResult, flags: Uint8Array): StepResult {
  const sequences = Array.from(flags.keys()).filter((sequence) => flags[sequence] !== 0);
  return sequences.length === 0 ? result : { ...result, failedSequences: Int32Array.from(sequences) };
}

/** No pool has the handle 0. */
function pushPages(list: (number | ArrayBufferView)[], rows: RowPages | undefined): void {
  if (rows === undefined) list.push(0);
  else list.push(rows.pool, rows.pages);
}

/** Codes of reductions over heads, and of pooling. */
const reductionCodes: Record<HeadReduce, number> = { max: 0, mean: 1 };

function pushSparse(list: (number | ArrayBufferView)[], { sparse = [], selections = [], pageSelections = [] }: Step) {
  list.push(sparse.length);
  for (const { sequence, group, slots, kept, budget, compactEvery, recent, decay, headReduce } of sparse) {
    list.push(sequence, group, slots.pages, slots.pageStart, slots.states, kept, budget);
    list.push(compactEvery, recent, decay, reductionCodes[headReduce]);
  }
  list.push(selections.length);
  for (const { sequence, group, slots, budget, observed, recent, pooling, headReduce } of selections) {
    list.push(sequence, group, slots.pages, slots.pageStart, slots.states, budget, observed, recent);
    list.push(reductionCodes[pooling.kind], pooling.width, reductionCodes[headReduce]);
  }
  list.push(pageSelections.length);
  for (const { sequence, group, bounds, bounded, budget, topP } of pageSelections)
    list.push(sequence, group, bounds, bounded, budget, topP);
}

function pushSampling(list: (number | ArrayBufferView)[], s: StepSampling): void {
  list.push(s.temperature, s.topP, s.topK, s.minP, s.seed, s.tokenIndex);
  list.push(s.repetitionPenalty, s.frequencyPenalty, s.presencePenalty);
  list.push(s.seenStart, s.seenTokens, s.seenCounts, s.biasStart, s.biasTokens, s.biasValues);
  list.push(s.topLogprobs, s.hasTarget, s.target);
  list.push(s.masks?.start ?? noMasks.start, s.masks?.words ?? noMasks.words);
}
