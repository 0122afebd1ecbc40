// Step time of an instance that decodes speculatively: a drafter proposes tokens, and one step of the target verifies them.

import { type LayerRange, meanShape, type StepShape } from '../protocol/step-shape.ts';
import { searchRowsWithin } from './micro-batches.ts';
import type { StepCostModel } from './roofline.ts';

export interface Speculation {
  /** Tokens that are drafted for each sequence and step. */
  readonly tokens: number;
  /** Probability that a drafted token is accepted if those before it are. */
  readonly acceptance: number;
  /** Undefined: drafting takes neither time nor memory, as with look-up in the prompt. */
  readonly drafter?: Drafter | undefined;
}

/** A drafting model on the devices of its target. */
export interface Drafter {
  readonly cost: StepCostModel;
  readonly weightBytes: number;
  /** Of one token on all devices together, replicas included. */
  readonly heldKvBytes: { readonly target: number; readonly drafter: number };
}

/**
 * Tokens of a step in the mean: the accepted ones up to the first rejected one, which the target replaces (Leviathan et
 * al., ICML 2023, equation 1).
 */
export function expectedTokens({ tokens, acceptance }: Omit<Speculation, 'drafter'>): number {
  let sum = 1;
  for (let i = 0, accepted = acceptance; i < tokens; i++, accepted *= acceptance) sum += accepted;
  return sum;
}

/**
 * A real step verifies `tokens + 1` rows of each decoding sequence, and yields `expectedTokens`. The steps of a
 * simulation yield one token, so each takes its share of that time: the mean is right, and the gaps between tokens are
 * even, where a real engine delivers accepted tokens together. Prefill rows count as they are.
 */
export class SpeculativeCost implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly #target: StepCostModel;
  readonly #speculation: Speculation;
  readonly #tokens: number;

  /** @throws RangeError when the devices cannot hold the weights of the drafter too */
  constructor(target: StepCostModel, speculation: Speculation) {
    const { drafter } = speculation;
    this.#target = target;
    this.#speculation = speculation;
    this.#tokens = expectedTokens(speculation);
    this.layers = target.layers;
    this.activationBytesPerToken = target.activationBytesPerToken;
    this.kvBytesPerToken = target.kvBytesPerToken;
    this.kvCapacityTokens = drafter === undefined ? target.kvCapacityTokens : capacityBeside(target, drafter);
  }

  stepUs(shape: StepShape): number {
    return Math.max(1, Math.round(this.#us(shape, (step) => this.#target.stepUs(step))));
  }

  /** The last range has the head, and drafts. */
  stageUs(shape: StepShape, range: LayerRange): number {
    const isLast = range.index === range.stages - 1;
    const targetUs = this.#us(shape, (step) => this.#target.stageUs(step, range), isLast);
    return Math.max(1, Math.round(targetUs));
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    if (shape.decodeRows === 0) return this.#target.rowsWithin(budgetUs, shape, position);
    return searchRowsWithin(budgetUs, shape, position, (step) => this.stepUs(step));
  }

  /** @param targetUs time of a step of the target */
  #us(full: StepShape, targetUs: (step: StepShape) => number, drafts = true): number {
    const shape = meanShape(full, this.layers);
    const { decodeRows } = shape;
    if (decodeRows === 0) return targetUs(shape);
    const prefill = prefillOf(shape);
    const prefillUs = prefill.rows === 0 ? 0 : targetUs(prefill);
    const verifyUs = targetUs(verified(shape, this.#speculation.tokens)) - prefillUs;
    return prefillUs + (verifyUs + (drafts ? this.#draftUs(shape) : 0)) / this.#tokens;
  }

  /** The drafter decodes one token after another; it has computed the prompts beside the target. */
  #draftUs({ decodeRows, decodeKeys }: StepShape): number {
    const { drafter, tokens } = this.#speculation;
    if (drafter === undefined) return 0;
    const rows = { rows: decodeRows, keyRows: decodeKeys, decodeRows, decodeKeys, logitRows: decodeRows };
    return tokens * drafter.cost.stepUs(rows);
  }
}

/** The rows of a step that do not decode. */
function prefillOf({ rows, keyRows, decodeRows, decodeKeys, logitRows }: StepShape): StepShape {
  return {
    rows: rows - decodeRows,
    keyRows: keyRows - decodeKeys,
    decodeRows: 0,
    decodeKeys: 0,
    logitRows: Math.max(0, logitRows - decodeRows),
  };
}

/**
 * A step that verifies drafted rows of its decoding sequences. One kernel computes the attention of all rows of a
 * sequence: it reads their keys once, so they count as the keys of one decode row, and the arithmetic of the others as
 * that of prefill rows.
 */
function verified({ rows, keyRows, decodeRows, decodeKeys, logitRows }: StepShape, tokens: number): StepShape {
  return {
    rows: rows + tokens * decodeRows,
    keyRows: keyRows + tokens * decodeKeys,
    decodeRows,
    decodeKeys,
    logitRows: logitRows + tokens * decodeRows,
  };
}

/** Tokens whose keys and values fit for both models, beside the drafter's weights. */
function capacityBeside(target: StepCostModel, { weightBytes, heldKvBytes }: Drafter): number {
  const bytes = target.kvCapacityTokens * heldKvBytes.target - weightBytes;
  if (bytes <= 0) throw new RangeError('Cannot hold the drafting model beside the target: no memory is left for KV');
  return Math.floor(bytes / (heldKvBytes.target + heldKvBytes.drafter));
}
