// A request of a workload without a model: its arrival time, lengths, and shared blocks.

export interface RequestLengths {
  /** Position in the trace, from 0. */
  readonly index: number;
  /** From the start of the trace; never descends. */
  readonly arrivalUs: number;
  /** At least 1. */
  readonly inputTokens: number;
  /** At least 1. */
  readonly outputTokens: number;
  /**
   * (ceil(inputTokens / blockTokens)): ids of the prompt's blocks, root to leaf. Equal ids are equal blocks behind
   * equal prefixes; the last block may be partial. Empty: unknown, nothing is shared.
   */
  readonly blocks: Int32Array;
  /** Ids of the blocks that the output completes, if known: they stay cached like those of the prompt. */
  readonly outputBlocks?: Int32Array;
  /** Name of its service class, which sets its latency limits. */
  readonly sloClass?: string;
  /** Tenant. */
  readonly tenant?: string;
  /** Larger runs first; 0 by default. */
  readonly priority?: number;
  /** Session of the request, and its place in the session from 0; undefined: the workload has no sessions. */
  readonly session?: number;
  readonly turn?: number;
  /** A batch job: no client waits for it. */
  readonly batch?: boolean;
  /** The next turn of its session, which is sent so long after the answer; its arrival is 0 until then. */
  readonly next?: { readonly thinkUs: number; readonly request: RequestLengths };
  /** It keeps all tokens, also where requests have a KV budget by default. */
  readonly kvBudget?: 'full';
}
