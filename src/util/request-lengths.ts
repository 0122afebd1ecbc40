// What a workload says of a request where no model runs: when it comes, how long it is, and which blocks it shares.

export interface RequestLengths {
  /** Place in the trace, from 0. */
  readonly index: number;
  /** From the start of the trace; never descends. */
  readonly arrivalUs: number;
  /** At least 1. */
  readonly inputTokens: number;
  /** At least 1. */
  readonly outputTokens: number;
  /**
   * (ceil(inputTokens / blockTokens)): ids of the prompt's blocks, root to leaf. Equal ids are equal blocks behind equal prefixes; the
   * last block may be partial. Empty: unknown, so that nothing is shared.
   */
  readonly blocks: Int32Array;
  /** Ids of the blocks that its output completes, where those are known: they stay cached as the prompt's do. */
  readonly outputBlocks?: Int32Array;
  /** By name: what it may wait. */
  readonly sloClass?: string;
  /** Who sent it. */
  readonly tenant?: string;
  /** Larger runs first; 0 unless given. */
  readonly priority?: number;
  /** A batch job: nobody waits for it. */
  readonly batch?: boolean;
}
