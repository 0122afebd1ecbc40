// Types of K and V in pages, and their sizes.

/**
 * Type of K and V in pages. Queries are rounded to it too, except beside `q8`: they stay float32, which kernels round to
 * 16-bit integers. `q8`: 8-bit integers, with a bf16 scale for every 32 dimensions of a token.
 */
export type KvType = 'bf16' | 'f32' | 'q8';

/** Dimensions of a token that share a scale in q8 pages. */
export const q8Dims = 32;

export interface KvHeads {
  readonly kvHeads: number;
  readonly headDim: number;
}

/** Bytes of K and V of one token in one layer. */
export function kvTokenBytes({ kvHeads, headDim }: KvHeads, type: KvType): number {
  const valueBytes = type === 'f32' ? 4 : type === 'bf16' ? 2 : 1;
  const scaleBytes = type === 'q8' ? 2 * Math.ceil(headDim / q8Dims) : 0;
  return 2 * kvHeads * (headDim * valueBytes + scaleBytes);
}
