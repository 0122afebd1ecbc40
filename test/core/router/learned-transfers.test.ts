// Learned transfer times: those of a link that was measured lately, else those of its ends.
import { expect, it } from 'vitest';
import { TransferTimes } from '../../../src/core/cost/transfer-times.ts';
import { LearnedTransfers } from '../../../src/core/router/placement/learned-transfers.ts';

const idle = { running: 0, steps: 0, stepMsTotal: 0 };

it('predict with the rate of the link while it is reported, within bounds', () => {
  const learned = new LearnedTransfers(3, 1_000_000);
  const times = new TransferTimes(learned.config);
  const sent = { bytes: 2 ** 30, copySeconds: 2 ** 30 / 4e9 };
  for (const instance of [0, 1, 2]) learned.observe(instance, { ...idle, sent });
  const tokensUs = (to: number) => Math.round(times.predictUs(0, 0, to, 100) - times.roundTripUs(0, to));
  expect([tokensUs(1), tokensUs(2)]).toEqual([25_000, 25_000]);
  learned.observe(0, { ...idle, sent, links: [{ to: 1, bytesPerSecond: 1e9 }, { to: 2 }] });
  expect([tokensUs(1), tokensUs(2)]).toEqual([100_000, 25_000]);
  // A wild figure counts as the least rate.
  learned.observe(0, { ...idle, sent, links: [{ to: 1, bytesPerSecond: 0 }] });
  expect(tokensUs(1)).toBe(100_000_000);
  learned.observe(0, { ...idle, sent });
  expect(tokensUs(1)).toBe(25_000);
});
