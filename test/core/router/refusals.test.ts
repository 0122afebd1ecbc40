// Refusals: their messages carry the figures of their causes, and the causes survive the wire format.

import { expect, it } from 'vitest';
import { contextTooLong, loadOf, promptExceedsReceiveBuffer, queueFull } from '../../../src/core/protocol/refusals.ts';
import { admissionRefusal } from '../../../src/core/router/admission/admission-policy.ts';
import { decodeRefusal } from '../../../src/core/transfer/hand-off/decode-check.ts';
import { refusalCause } from '../../../src/runtime/wire/messages.ts';

const slo = { ttftUs: 1_000_000, tbtUs: 50_000, completionUs: 9_000_000 };
const predicted = {
  ...{ ttftUs: 1_500_000, tbtUs: 100_000, outputTokens: 99.6, completionUs: 13_500_000 },
  ...{ memory: 1.25, decodeUs: 2_000_000 },
};
const batch = {
  ...{ lengths: [15, 31, 32], growthTokens: 10, capacityTokens: 100, blockTokens: 16, tbtUsMax: 50_000 },
  cost: { predictUs: () => 60_000, rowsWithin: () => 1, observe: () => {} },
};

it.each([
  [admissionRefusal('ttft', predicted, slo), 'predicted TTFT 1500 ms exceeds 1000 ms', 1.5, 1000],
  [admissionRefusal('tbt', predicted, slo), 'predicted TBT 100 ms exceeds 50 ms', 2, 2000],
  [admissionRefusal('completion', predicted, slo), '100 tokens by a predicted TBT of 100 ms exceed 9000 ms', 1.5, 2000],
  [admissionRefusal('memory', predicted, slo), 'requests that decode would need 125 % of the KV memory', 1.25, 2000],
  [decodeRefusal(batch), 'its decode would be late: predicted TBT 60 ms exceeds 50 ms', 1.2, 1000],
  [
    decodeRefusal({ ...batch, capacityTokens: 80 }),
    'its decode would be late: 3 sequences of 96 tokens, 80 fit',
    1.2,
    1000,
  ],
  // The sequence of lower priority counts neither with its tokens nor as a sequence.
  [
    decodeRefusal({ ...batch, outranked: [32], capacityTokens: 40 }),
    'its decode would be late: 2 sequences of 48 tokens, 40 fit',
    1.2,
    1000,
  ],
  [queueFull(9, 9, 3000), '9 of at most 9 requests are being served, try again in 3000 ms', 10 / 9, 3000],
  [
    contextTooLong({ promptTokens: 100, outputTokensMax: 21 }, 100),
    'it is longer than the KV memory: 100 prompt tokens and up to 21 of output, 100 fit',
    1.2,
    undefined,
  ],
  [
    promptExceedsReceiveBuffer(70),
    'its prompt is longer than the memory that takes prompts from other instances',
    undefined,
    undefined,
  ],
] as const)('refusal %#', (refusal, words, load, retryAfterMs) => {
  expect(refusal?.message).toBe(`Cannot admit request: ${words}`);
  expect(refusal?.retryAfterMs).toBe(retryAfterMs);
  expect(refusal?.cause && loadOf(refusal.cause)).toBe(load);
  expect(refusalCause.parse(refusal?.cause)).toEqual(refusal?.cause);
});
