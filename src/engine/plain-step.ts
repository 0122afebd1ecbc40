// Steps built by hand, with chosen blocks and greedy sampling, for accuracy measurements and tests.
import {
  type LayerGroup,
  pageTokens,
  type Step,
  type StepGroup,
  type StepSampling,
  topLogprobsMax,
} from '../util/step.ts';

export interface PlainSequence {
  /** Tokens of this step, at positions start, start + 1, ... */
  readonly tokens: ArrayLike<number>;
  readonly start: number;
  /** rBlock ids of the sequence from its first position on, the same in every layer group. */
  readonly blocks: readonly number[];
  /** True: window groups omit blocks that none of these tokens attends to. False: every group lists all blocks. */
  readonly omitsUnseen?: boolean;
  /** Rows that require logits. */
  readonly logits: 'none' | 'last' | 'all';
}

/** Page ids of rBlocks 0..blocks-1, each with consecutive pages. */
export function plainPageTable(blocks: number, layers: number): Int32Array {
  return Int32Array.from({ length: blocks * layers }, (_, index) => index);
}

/** Pages of the rBlocks of a layer group. */
export type PlainPages = Pick<StepGroup, 'pageTable'> & LayerGroup;

/** Pages of rBlocks 0..blocks-1 of every group, one group after another. */
export function plainPages(blocks: number, groups: readonly LayerGroup[]): readonly PlainPages[] {
  let next = 0;
  return groups.map((group) => ({ ...group, pageTable: plainPageTable(blocks, group.layers).map(() => next++) }));
}

/** A step of one layer group. */
export function plainStep(sequences: readonly PlainSequence[], pageTable: Int32Array, layers: number): Step {
  return groupedStep(sequences, [{ pageTable, layers, window: undefined }]);
}

/** Every logit row is sampled greedily and reports its best alternatives. */
export function groupedStep(sequences: readonly PlainSequence[], pages: readonly PlainPages[]): Step {
  const tokens: number[] = [];
  const positions: number[] = [];
  const rowStart = [0];
  const logitRows: number[] = [];
  for (const sequence of sequences) {
    const count = sequence.tokens.length;
    for (let i = 0; i < count; i++) {
      if (sequence.logits === 'all' || (sequence.logits === 'last' && i === count - 1)) logitRows.push(tokens.length);
      tokens.push(sequence.tokens[i]);
      positions.push(sequence.start + i);
    }
    rowStart.push(tokens.length);
  }
  return {
    tokens: Int32Array.from(tokens),
    positions: Int32Array.from(positions),
    rowStart: Int32Array.from(rowStart),
    groups: pages.map((group) => groupBlocks(sequences, group)),
    remote: [],
    logitRows: Int32Array.from(logitRows),
    sampling: greedySampling(logitRows.length),
  };
}

function groupBlocks(sequences: readonly PlainSequence[], { pageTable, layers, window }: PlainPages): StepGroup {
  const blocks: number[] = [];
  const blockStart: number[] = [];
  const firstBlock: number[] = [];
  for (const sequence of sequences) {
    const first = sequence.omitsUnseen ? firstAttendedBlock(sequence.start, window) : 0;
    blockStart.push(blocks.length);
    firstBlock.push(first);
    blocks.push(...sequence.blocks.slice(first));
  }
  return {
    pageTable,
    layers,
    blocks: Int32Array.from(blocks),
    blockStart: Int32Array.from(blockStart),
    firstBlock: Int32Array.from(firstBlock),
  };
}

/** The block of the first token that a row at `position` attends to. */
export function firstAttendedBlock(position: number, window: number | undefined): number {
  return window === undefined ? 0 : Math.floor(Math.max(0, position - window + 1) / pageTokens);
}

export function greedySampling(rows: number): StepSampling {
  return {
    temperature: new Float32Array(rows),
    topP: new Float32Array(rows).fill(1),
    topK: new Int32Array(rows),
    minP: new Float32Array(rows),
    seed: new Uint32Array(2 * rows),
    tokenIndex: new Uint32Array(rows),
    repetitionPenalty: new Float32Array(rows).fill(1),
    frequencyPenalty: new Float32Array(rows),
    presencePenalty: new Float32Array(rows),
    seenStart: new Int32Array(rows + 1),
    seenTokens: new Int32Array(0),
    seenCounts: new Int32Array(0),
    biasStart: new Int32Array(rows + 1),
    biasTokens: new Int32Array(0),
    biasValues: new Float32Array(0),
    topLogprobs: new Int32Array(rows).fill(topLogprobsMax),
    hasTarget: new Uint8Array(rows),
    target: new Int32Array(rows),
  };
}
