// Causes of failures and refusals, with the figures of the decision.

/**
 * `GRAMMAR_FAILED`: the grammar of the request cannot be compiled, or allows no token. `UNSUPPORTED_REQUEST`: an external
 * engine does not serve such requests.
 */
export type FailureCode =
  | 'NOT_READY'
  | 'KV_OVERLOADED'
  | 'CONTEXT_TOO_LONG'
  | 'SHUTTING_DOWN'
  | 'GRAMMAR_FAILED'
  | 'UNSUPPORTED_REQUEST'
  | 'ENGINE_FAILED';

/**
 * Why a request is refused: the predicted TTFT, TBT or completion time exceeds its bound, the decoding requests exceed
 * KV memory, the limit of accepted requests is reached, or the request is too long. `at`: before its prefill, or on its decode instance. Token
 * counts are tokens with keys and values; times are microseconds.
 */
export type RefusalCause =
  | { readonly reason: 'ttft'; readonly at: 'prefill'; readonly predictedUs: number; readonly mostUs: number }
  | { readonly reason: 'tbt'; readonly at: 'prefill' | 'decode'; readonly predictedUs: number; readonly mostUs: number }
  | {
      readonly reason: 'completion';
      readonly at: 'prefill';
      readonly predictedUs: number;
      readonly mostUs: number;
      /** Predicted length of the output. */
      readonly outputTokens: number;
      /** Predicted time between tokens. */
      readonly tbtUs: number;
    }
  /** `share`: KV memory of all that would decode, over capacity. */
  | { readonly reason: 'memory'; readonly at: 'prefill'; readonly share: number }
  | {
      readonly reason: 'memory';
      readonly at: 'decode';
      readonly sequences: number;
      readonly tokens: number;
      readonly capacityTokens: number;
    }
  | { readonly reason: 'queue'; readonly at: 'prefill'; readonly accepted: number; readonly queueMax: number }
  | {
      readonly reason: 'length';
      readonly at: 'prefill';
      readonly promptTokens: number;
      readonly outputTokensMax: number;
      readonly capacityTokens: number;
    }
  /** The prompt exceeds the receive buffers of its decode instance. */
  | { readonly reason: 'length'; readonly at: 'decode'; readonly promptTokens: number };
