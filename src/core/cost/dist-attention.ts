// What a step costs whose rows see keys of other instances (DistAttention, Infinite-LLM section 4), and what it costs those instances.

import type { StepShape } from '../protocol/step-shape.ts';
import type { StepCostModel } from './roofline.ts';

/** Rows and the keys that they see at one creditor; as in `StepShape`. */
export type RemoteKeys = Omit<StepShape, 'logitRows'>;

/** The way of queries to creditors and of partials back. */
export interface QueryLink {
  /** Of the model: each is a round trip. */
  readonly layers: number;
  /** Of one row and all layers: its query, and the partial (o, m, l) that comes back. */
  readonly rowBytes: number;
  readonly oneWayUs: number;
  readonly bytesPerUs: number;
}

export interface AttentionHeads {
  readonly layers: number;
  readonly heads: number;
  readonly headDim: number;
}

/** Queries of two bytes an element; of each head an unscaled output, a maximum and a sum of four. */
export function queryRowBytes({ layers, heads, headDim }: AttentionHeads): number {
  return layers * heads * (2 * headDim + 4 * (headDim + 2));
}

/** Attention of a step: what the same rows would save if each saw itself alone. */
export function attentionUs(cost: StepCostModel, shape: StepShape): number {
  const { rows, decodeRows } = shape;
  return cost.stepUs(shape) - cost.stepUs({ ...shape, keyRows: rows, decodeKeys: decodeRows });
}

/** What a creditor's devices compute for a guest's rows, were they to do nothing else. */
export function guestUs(cost: StepCostModel, { rows, keyRows, decodeRows, decodeKeys }: RemoteKeys): number {
  const shape = { rows, keyRows: rows + keyRows, decodeRows, decodeKeys: decodeRows + decodeKeys, logitRows: 0 };
  return attentionUs(cost, shape);
}

/**
 * Until the partials of a creditor are here: a round trip for each layer, queries and partials of all rows that the step sends anywhere (they
 * share its NIC), and the guest's work at the share that it gets, or until the keys that lie in host memory have been read, whichever is longer.
 */
export function partialsUs(
  link: QueryLink,
  sentRows: number,
  guestWorkUs: number,
  sharePermille: number,
  hostReadUs = 0,
): number {
  const wayUs = link.layers * 2 * link.oneWayUs + (sentRows * link.rowBytes) / link.bytesPerUs;
  return wayUs + Math.max(hostReadUs, (guestWorkUs * 1000) / Math.max(1, sharePermille));
}

/** All creditors work beside the local part of the attention: what is longer counts (design 5). */
export function distributedUs(localUs: number, localAttentionUs: number, awaitedUs: number): number {
  return Math.round(localUs + Math.max(0, awaitedUs - localAttentionUs));
}

/** A step of a creditor, whose guests take this share of its time. */
export function besideGuestsUs(us: number, remoteAttentionPermille: number): number {
  return Math.round((us * 1000) / (1000 - remoteAttentionPermille));
}
