// The cluster as placement sees it: one entry for each instance.

/** By instance index. Times are predictions in microseconds. */
export interface ClusterView {
  /** 1: the instance is up and computes prompts. */
  readonly up: Uint8Array;
  /** Requests that are placed and not ended. */
  readonly requests: Int32Array;
  /** Wait of a prefill that arrives now. */
  readonly queueUs: Float64Array;
  /** Instances of one kind compute at one speed. */
  readonly kind: Uint8Array;
  /** Factor on prefill times: the instance computes attention for debtors too. 1: it does not. */
  readonly slowness: Float64Array;
}
