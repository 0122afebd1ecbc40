// Service level objectives (SLOs) of a request.

/**
 * Latency bounds in microseconds; Infinity: no bound. TTFT and completion time count from arrival, TBT is the time
 * between tokens.
 */
export interface Slo {
  readonly ttftUs: number;
  readonly tbtUs: number;
  /** Until the last token: the bound of requests that stream to no reader. */
  readonly completionUs: number;
}
