// The choice of (a, b), against every batch tried one by one.
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { attentionWorkersCost } from '../../../src/cli/simulate/simulated-attention-workers.ts';
import { type DopCandidate, planDop } from '../../../src/core/attention-workers/dop-planner.ts';
import { decodeShape } from '../../../src/core/protocol/step-shape.ts';

function candidate(modelDevices: number, attentionDevices: number, batches: number, pricePerHour: number) {
  const cost = attentionWorkersCost({
    cost: 'roofline',
    model: 'llama3-70b',
    hardware: 'h100x8',
    attentionHardware: 'h20x8',
    dop: `${modelDevices},${attentionDevices}`,
    pp: 1,
    precision: 'bf16',
    kvType: 'bf16',
    stack: 'fhbn',
    staggeredBatches: batches,
    partition: 'heads',
  });
  return { modelDevices, attentionDevices, batches, cost, pricePerHour };
}

const candidates: readonly DopCandidate[] = [
  candidate(2, 2, 2, 20),
  candidate(2, 4, 2, 26),
  candidate(4, 4, 3, 40),
  candidate(8, 8, 5, 79),
];

it('lists each candidate with the largest batch within memory and TBT, the best first', () => {
  fc.assert(
    fc.property(
      fc.record({
        contextTokens: fc.integer({ min: 1000, max: 200_000 }),
        tbtUsMax: fc.integer({ min: 30_000, max: 200_000 }),
        sequencesMax: fc.integer({ min: 1, max: 400 }),
        alpha: fc.constant(0.2),
      }),
      fc.constantFrom('throughput' as const, 'cost' as const),
      (limits, objective) => {
        const { contextTokens, tbtUsMax, sequencesMax } = limits;
        const expected = candidates.flatMap((each) => {
          const stepUs = (n: number) => each.cost.stepUs(decodeShape(n, n * contextTokens));
          let sequences = 0;
          while (
            sequences < sequencesMax &&
            (sequences + 1) * contextTokens <= each.cost.kvCapacityTokens &&
            stepUs(sequences + 1) <= tbtUsMax
          )
            sequences++;
          return sequences === 0 ? [] : [{ ...each, sequences }];
        });
        const choices = planDop(candidates, limits, objective);
        expect(
          choices
            .map(({ sequences, modelDevices, attentionDevices }) => [modelDevices, attentionDevices, sequences])
            .sort(),
        ).toEqual(
          expected
            .map(({ sequences, modelDevices, attentionDevices }) => [modelDevices, attentionDevices, sequences])
            .sort(),
        );
        const values = choices.map(({ tokensPerSecond, pricePerHour }) =>
          objective === 'throughput' ? tokensPerSecond : (tokensPerSecond * 3600) / pricePerHour,
        );
        expect(values).toEqual(values.toSorted((a, b) => b - a));
        for (const { sequences, parts, tokensPerSecond } of choices)
          expect(tokensPerSecond).toBeCloseTo((sequences * 1e6) / parts.stepUs, 6);
      },
    ),
    { numRuns: 40 },
  );
});

it('has the network of the chosen bandwidth as the share alpha of a batch', () => {
  const [choice] = planDop(candidates, { contextTokens: 1366, tbtUsMax: 1e9, sequencesMax: 4096, alpha: 0.2 }, 'cost');
  const { query, keysAndValues, result } = choice.cost.rowBytes;
  const bytes = (choice.sequences / choice.batches) * (query + keysAndValues + result);
  const nics = Math.min(choice.modelDevices / (choice.batches - 1), choice.attentionDevices);
  const networkUs = (bytes * 1e6) / (choice.bytesPerSecondMin * nics);
  expect(networkUs / (choice.parts.modelUs + choice.parts.attentionUs)).toBeCloseTo(0.2, 9);
});
