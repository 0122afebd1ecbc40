// Cost of a step that attends to keys on other instances (DistAttention, Infinite-LLM section 4), and the cost at those
// instances.

import type { StepShape } from '../protocol/step-shape.ts';
import type { StepCostModel } from './roofline.ts';

/** Rows and the keys that they attend to at one creditor; fields as in `StepShape`. */
export type RemoteKeys = Omit<StepShape, 'logitRows'>;

/** The link that carries queries to creditors and partial results back. */
export interface QueryLink {
  /** Layers of the model: each takes a round trip. */
  readonly layers: number;
  /** Bytes of one row over all layers: its query, and the partial result (o, m, l) that returns. */
  readonly rowBytes: number;
  readonly oneWayUs: number;
  readonly bytesPerUs: number;
}

export interface AttentionHeads {
  readonly layers: number;
  readonly heads: number;
  readonly headDim: number;
}

/** Queries have two bytes an element; each head returns an unscaled output, a maximum and a sum of four bytes each. */
export function queryRowBytes({ layers, heads, headDim }: AttentionHeads): number {
  return layers * heads * (2 * headDim + 4 * (headDim + 2));
}

/** Attention time of a step: the time that the same rows would save if each attended to itself alone. */
export function attentionUs(cost: Pick<StepCostModel, 'stepUs'>, shape: StepShape): number {
  const { rows, decodeRows } = shape;
  return cost.stepUs(shape) - cost.stepUs({ ...shape, keyRows: rows, decodeKeys: decodeRows });
}

/** Time that a creditor's devices take for a debtor's rows if they compute nothing else. */
export function remoteAttentionUs(
  cost: Pick<StepCostModel, 'stepUs'>,
  { rows, keyRows, decodeRows, decodeKeys }: RemoteKeys,
): number {
  const shape = { rows, keyRows: rows + keyRows, decodeRows, decodeKeys: decodeRows + decodeKeys, logitRows: 0 };
  return attentionUs(cost, shape);
}

/**
 * Time until the partial results of a creditor arrive: a round trip for each layer, the queries and results of all rows
 * that the step sends (they share its NIC), and the longer of the creditor's work at its share of time and reading the
 * keys that are in host memory.
 */
export function partialsUs(
  link: QueryLink,
  sentRows: number,
  creditorUs: number,
  sharePermille: number,
  hostReadUs = 0,
): number {
  const wayUs = link.layers * 2 * link.oneWayUs + (sentRows * link.rowBytes) / link.bytesPerUs;
  return wayUs + Math.max(hostReadUs, (creditorUs * 1000) / Math.max(1, sharePermille));
}

/**
 * Keys and values that travel to the rows of a step if the step computes all of its attention (Ring Attention): those of
 * each decoding sequence, and of one prompt.
 */
export function keysSent({ rows, keyRows, decodeRows, decodeKeys }: RemoteKeys): number {
  const promptRows = rows - decodeRows;
  return decodeKeys + (promptRows > 0 ? (keyRows - decodeKeys) / promptRows : 0);
}

/** Time until the keys and values of other instances have arrived, layer by layer, beside the attention to them. */
export function ringUs({ layers, oneWayUs, bytesPerUs }: QueryLink, bytes: number): number {
  return layers * oneWayUs + bytes / bytesPerUs;
}

/** What one way of attention over remote keys costs a step. */
export interface WayCost {
  /** Over the debtor's NIC. */
  readonly bytes: number;
  /** Predicted time of the step. */
  readonly us: number;
}

/** Times within this share of each other count as equal, since predictions leave out other traffic. */
const equalShare = 0.1;

/**
 * True if the keys of a step's remote blocks should travel to its rows, and false if the rows should travel to them: the
 * way with the shorter step, and of two that take as long the one with fewer bytes.
 */
export function fetchesKeys(shipped: WayCost, fetched: WayCost): boolean {
  const isEqual = Math.abs(shipped.us - fetched.us) <= equalShare * Math.max(shipped.us, fetched.us);
  return isEqual ? fetched.bytes < shipped.bytes : fetched.us < shipped.us;
}

/** All creditors work in parallel with the local attention: the longer time counts. */
export function distributedUs(localUs: number, localAttentionUs: number, remoteUs: number): number {
  return Math.round(localUs + Math.max(0, remoteUs - localAttentionUs));
}

/** Time of a creditor's step while attention for debtors takes this share of it. @param us of its own work alone */
export function withServedAttentionUs(us: number, permille: number): number {
  return permille === 0 ? us : (us * 1000) / (1000 - permille);
}

/** The inverse: the time that the creditor's own work takes alone. */
export function withoutServedAttentionUs(us: number, permille: number): number {
  return permille === 0 ? us : (us * (1000 - permille)) / 1000;
}
