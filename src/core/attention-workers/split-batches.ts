// The batches of a step over attention workers: while attention of one is computed, the model worker computes the
// others (Lamina, section 4.3).

import {
  type Step,
  type StepGroup,
  type StepResult,
  type StepSampling,
  type TokenMasks,
  topLogprobsMax,
} from '../../util/step.ts';
import type { StepShape } from '../protocol/step-shape.ts';

/**
 * The sequences of batches of about equal predicted time, each ascending; undefined for a single sequence or batch. A
 * sequence is never divided: a chunk of a prompt stays whole. Longest first, each to the batch that takes the least
 * time. @param sequences (sequences): shape of each sequence's rows @param count batches, fewer for fewer sequences
 */
export function splitBatches(
  sequences: readonly StepShape[],
  predictUs: (shape: StepShape) => number,
  count = 2,
): readonly (readonly number[])[] | undefined {
  if (Math.min(sequences.length, count) < 2) return undefined;
  const alone = sequences.map(predictUs);
  const order = [...sequences.keys()].sort((a, b) => alone[b] - alone[a] || a - b);
  const batches = Array.from({ length: Math.min(sequences.length, count) }, () => ({
    ...{ sequences: [] as number[], shape: nothing, us: 0 },
  }));
  for (const sequence of order) {
    const batch = batches.reduce((best, each) => (isShorter(each, best) ? each : best));
    batch.sequences.push(sequence);
    batch.shape = sumOf(batch.shape, sequences[sequence]);
    batch.us = predictUs(batch.shape);
  }
  return batches.map((batch) => batch.sequences.sort(ascending));
}

interface Batch {
  readonly sequences: readonly number[];
  readonly us: number;
}

function isShorter(a: Batch, b: Batch): boolean {
  return a.us === b.us ? a.sequences.length < b.sequences.length : a.us < b.us;
}

const nothing: StepShape = { rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 };

const ascending = (a: number, b: number): number => a - b;

function sumOf(a: StepShape, b: StepShape): StepShape {
  return {
    rows: a.rows + b.rows,
    keyRows: a.keyRows + b.keyRows,
    decodeRows: a.decodeRows + b.decodeRows,
    decodeKeys: a.decodeKeys + b.decodeKeys,
    logitRows: a.logitRows + b.logitRows,
  };
}

/** (sequences): the shape of each sequence's rows. */
export function sequenceShapes({ positions, rowStart, logitRows }: Step): readonly StepShape[] {
  let logit = 0;
  return Array.from({ length: rowStart.length - 1 }, (_, sequence) => {
    const rows = rowStart[sequence + 1] - rowStart[sequence];
    const start = positions[rowStart[sequence]];
    const firstLogit = logit;
    while (logit < logitRows.length && logitRows[logit] < rowStart[sequence + 1]) logit++;
    const keyRows = rows * start + (rows * (rows + 1)) / 2;
    const isDecode = rows === 1;
    return {
      ...{ rows, keyRows, logitRows: logit - firstLogit },
      ...{ decodeRows: Number(isDecode), decodeKeys: isDecode ? keyRows : 0 },
    };
  });
}

/** A part of a step, and where its results belong. */
export interface StepBatch {
  readonly step: Step;
  /** Of the whole step, ascending. */
  readonly sequences: readonly number[];
  /** Indices in the whole step's `logitRows`. */
  readonly logits: readonly number[];
}

/** The step of these sequences, ascending. It has no remote keys, arriving keys and rows in pages. */
export function batchOf(step: Step, sequences: readonly number[]): StepBatch {
  const rows = sequences.flatMap((sequence) => between(step.rowStart, sequence));
  const rowStart = offsetsOf(sequences.map((sequence) => step.rowStart[sequence + 1] - step.rowStart[sequence]));
  const place = new Map(rows.map((row, i) => [row, i]));
  const logits = [...step.logitRows.keys()].filter((logit) => place.has(step.logitRows[logit]));
  const { sequenceWorkers } = step;
  const places = new Map(sequences.map((sequence, i) => [sequence, i]));
  return {
    step: {
      tokens: chosen(step.tokens, rows),
      positions: chosen(step.positions, rows),
      rowStart,
      groups: step.groups.map((group) => groupOf(group, sequences)),
      remote: [],
      ...(sequenceWorkers && { sequenceWorkers: chosen(sequenceWorkers, sequences) }),
      ...(step.sparse && { sparse: entriesOf(step.sparse, places) }),
      ...(step.selections && { selections: entriesOf(step.selections, places) }),
      ...(step.pageSelections && { pageSelections: entriesOf(step.pageSelections, places) }),
      logitRows: Int32Array.from(logits, (logit) => place.get(step.logitRows[logit]) ?? 0),
      sampling: samplingOf(step.sampling, logits),
      ...(step.hiddenRows && { hiddenRows: chosen(step.hiddenRows, logits) }),
    },
    sequences,
    logits,
  };
}

/** The result of the whole step. @param logitRows of the whole step */
export function resultOf(
  batches: readonly { readonly batch: StepBatch; readonly result: StepResult }[],
  logitRows: number,
): StepResult {
  const merged = {
    tokens: new Int32Array(logitRows),
    logprobs: new Float32Array(logitRows),
    topTokens: new Int32Array(logitRows * topLogprobsMax),
    topLogprobs: new Float32Array(logitRows * topLogprobsMax),
    failed: new Uint8Array(logitRows),
  };
  for (const { batch, result } of batches)
    for (const [from, to] of batch.logits.entries()) {
      merged.tokens[to] = result.tokens[from];
      merged.logprobs[to] = result.logprobs[from];
      merged.failed[to] = result.failed[from];
      const of = [from * topLogprobsMax, (from + 1) * topLogprobsMax] as const;
      merged.topTokens.set(result.topTokens.subarray(...of), to * topLogprobsMax);
      merged.topLogprobs.set(result.topLogprobs.subarray(...of), to * topLogprobsMax);
    }
  const hidden = hiddenOf(batches, logitRows);
  const failedSequences = batches.flatMap(({ batch, result }) =>
    Array.from(result.failedSequences, (at) => batch.sequences[at]),
  );
  return { ...merged, ...(hidden && { hidden }), failedSequences: Int32Array.from(failedSequences.sort(ascending)) };
}

/** The hidden states of all batches, in the order of the whole step. */
function hiddenOf(
  batches: readonly { readonly batch: StepBatch; readonly result: StepResult }[],
  logitRows: number,
): Float32Array | undefined {
  let all: Float32Array | undefined;
  for (const { batch, result } of batches) {
    const columns = (result.hidden?.length ?? 0) / Math.max(1, batch.logits.length);
    if (columns > 0) all ??= new Float32Array(logitRows * columns);
    for (const [from, to] of batch.logits.entries())
      if (result.hidden !== undefined)
        all?.set(result.hidden.subarray(from * columns, (from + 1) * columns), to * columns);
  }
  return all;
}

/** The entries of these sequences, which are numbered by their places. */
function entriesOf<T extends { readonly sequence: number }>(
  entries: readonly T[],
  places: ReadonlyMap<number, number>,
): readonly T[] {
  return entries.flatMap((entry) => {
    const sequence = places.get(entry.sequence);
    return sequence === undefined ? [] : [{ ...entry, sequence }];
  });
}

function groupOf(group: StepGroup, sequences: readonly number[]): StepGroup {
  const { blocks, blockStart, firstBlock } = group;
  const end = (sequence: number): number => blockStart[sequence + 1] ?? blocks.length;
  const kept = sequences.map((sequence) => blocks.subarray(blockStart[sequence], end(sequence)));
  return {
    ...group,
    blocks: joined(kept),
    blockStart: offsetsOf(kept.map(({ length }) => length)).subarray(0, kept.length),
    firstBlock: chosen(firstBlock, sequences),
  };
}

function samplingOf(sampling: StepSampling, logits: readonly number[]): StepSampling {
  const { seenStart, biasStart, seed } = sampling;
  const seen = logits.flatMap((logit) => between(seenStart, logit));
  const bias = logits.flatMap((logit) => between(biasStart, logit));
  const countOf = (start: Int32Array) => logits.map((logit) => start[logit + 1] - start[logit]);
  return {
    temperature: chosen(sampling.temperature, logits),
    topP: chosen(sampling.topP, logits),
    topK: chosen(sampling.topK, logits),
    minP: chosen(sampling.minP, logits),
    seed: Uint32Array.from(logits.flatMap((logit) => [seed[2 * logit], seed[2 * logit + 1]])),
    tokenIndex: chosen(sampling.tokenIndex, logits),
    repetitionPenalty: chosen(sampling.repetitionPenalty, logits),
    frequencyPenalty: chosen(sampling.frequencyPenalty, logits),
    presencePenalty: chosen(sampling.presencePenalty, logits),
    seenStart: offsetsOf(countOf(seenStart)),
    seenTokens: chosen(sampling.seenTokens, seen),
    seenCounts: chosen(sampling.seenCounts, seen),
    biasStart: offsetsOf(countOf(biasStart)),
    biasTokens: chosen(sampling.biasTokens, bias),
    biasValues: chosen(sampling.biasValues, bias),
    topLogprobs: chosen(sampling.topLogprobs, logits),
    hasTarget: chosen(sampling.hasTarget, logits),
    target: chosen(sampling.target, logits),
    ...(sampling.masks && { masks: masksOf(sampling.masks, logits) }),
  };
}

function masksOf({ start, words }: TokenMasks, logits: readonly number[]): TokenMasks {
  const kept = logits.flatMap((logit) => between(start, logit));
  return {
    start: offsetsOf(logits.map((logit) => start[logit + 1] - start[logit])),
    words: chosen(words, kept),
  };
}

type Numbers = Int32Array | Uint32Array | Uint8Array | Float32Array;

function chosen<T extends Numbers>(values: T, places: readonly number[]): T {
  const copy = values.slice(0, places.length) as T;
  for (const [i, place] of places.entries()) copy[i] = values[place];
  return copy;
}

/** The indices from `starts[index]` to the next start. */
function between(starts: Int32Array, index: number): number[] {
  const from = starts[index];
  return Array.from({ length: starts[index + 1] - from }, (_, i) => from + i);
}

/** (counts + 1): 0 and the running sums. */
function offsetsOf(counts: readonly number[]): Int32Array {
  let sum = 0;
  return Int32Array.from([0, ...counts.map((count) => (sum += count))]);
}

function joined(parts: readonly Int32Array[]): Int32Array {
  const all = new Int32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}
