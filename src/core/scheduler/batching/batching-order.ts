// The order in which waiting sequences start: what a policy receives, and the named orders.

/** A waiting sequence for a batching policy. Valid during the call. */
export interface WaitingSequence {
  readonly nowUs: number;
  /** It waits at this instance since then. */
  readonly queuedUs: number;
  /** Its place in the order of arrival: unique and rising. */
  readonly arrival: number;
  readonly priority: number;
  readonly tenant: string;
  /**
   * Tokens served to its tenant, an output token as two, once the tenant's earlier waiting sequences of this priority
   * have started.
   */
  readonly tenantTokens: number;
  readonly promptTokens: number;
  /** Tokens to compute before its next output token, without those in the cache. */
  readonly uncachedTokens: number;
  /** Output tokens so far: 0 unless it was preempted or continues here. */
  readonly outputTokens: number;
  /** Maximum output tokens. In simulations it has as many. */
  readonly outputTokensMax: number;
  readonly preemptions: number;
}

/**
 * Ranks a waiting sequence before each step. Of equal priority the one of the least rank starts first; ties start in
 * order of arrival. Running sequences keep their order of arrival, in which they take rows and memory.
 */
export type BatchingPolicy = (sequence: WaitingSequence) => number;

export const batchingOrders = {
  tokens: ({ tenantTokens }) => tenantTokens,
  arrival: ({ arrival }) => arrival,
} satisfies Readonly<Record<string, BatchingPolicy>>;

export type BatchingKind = keyof typeof batchingOrders;
export const batchingKinds = Object.keys(batchingOrders) as readonly BatchingKind[];

/** The name of an order, or a policy. */
export type BatchingRule = BatchingKind | BatchingPolicy;
