// The cluster as routing decisions see it: one entry for each instance.

/** Instances by index. Times are predictions in microseconds. */
export interface ClusterView {
  /** 1: takes requests. */
  readonly up: Uint8Array;
  /** Requests accepted and not ended. */
  readonly requests: Int32Array;
  /** Until a prefill that comes now would begin. */
  readonly queueUs: Float64Array;
  /** Instances of a kind compute alike. */
  readonly kind: Uint8Array;
}
