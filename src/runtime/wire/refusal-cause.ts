// Validation of the cause of a refusal.
import { z } from 'zod';

const count = z.number().int().min(0);
const figure = z.number().min(0);
const prefill = z.literal('prefill');
const decode = z.literal('decode');
const late = { predictedUs: figure, mostUs: figure };
export const refusalCause = z.discriminatedUnion('reason', [
  z.strictObject({ reason: z.literal('ttft'), at: prefill, ...late }),
  z.strictObject({ reason: z.literal('tbt'), at: z.union([prefill, decode]), ...late }),
  z.strictObject({ reason: z.literal('completion'), at: prefill, ...late, outputTokens: figure, tbtUs: figure }),
  z.discriminatedUnion('at', [
    z.strictObject({ reason: z.literal('memory'), at: prefill, share: figure }),
    z.strictObject({
      reason: z.literal('memory'),
      at: decode,
      sequences: count,
      tokens: count,
      capacityTokens: figure,
    }),
  ]),
  z.strictObject({ reason: z.literal('queue'), at: prefill, accepted: count, queueMax: count }),
  z.discriminatedUnion('at', [
    z.strictObject({
      ...{ reason: z.literal('length'), at: prefill },
      ...{ promptTokens: count, outputTokensMax: count, capacityTokens: figure },
    }),
    z.strictObject({ reason: z.literal('length'), at: decode, promptTokens: count }),
  ]),
]);
