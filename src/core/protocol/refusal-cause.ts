// Why a request fails or is refused, with the figures that the decision rests on.

export type FailureCode = 'NOT_READY' | 'KV_OVERLOADED' | 'CONTEXT_TOO_LONG' | 'SHUTTING_DOWN' | 'ENGINE_FAILED';

/**
 * Where a request was refused, why, and by which figures: its first token, its gaps or its end would be later than they may be, what decodes
 * would need more KV memory than there is, the queue is full, or it is too long. Tokens are those that need keys and values.
 */
export type RefusalCause =
  | { readonly reason: 'ttft'; readonly at: 'prefill'; readonly predictedUs: number; readonly mostUs: number }
  | { readonly reason: 'tbt'; readonly at: 'prefill' | 'decode'; readonly predictedUs: number; readonly mostUs: number }
  | {
      readonly reason: 'completion';
      readonly at: 'prefill';
      readonly predictedUs: number;
      readonly mostUs: number;
      /** Predicted: of its output, and between two of them. */
      readonly outputTokens: number;
      readonly tbtUs: number;
    }
  /** Of all that would decode, over what fits. */
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
  /** Its prompt could never land where it is to be decoded. */
  | { readonly reason: 'length'; readonly at: 'decode'; readonly promptTokens: number };
