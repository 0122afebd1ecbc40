// The demand that an instance reports to its rManager.
import { expect, it } from 'vitest';
import { DemandReporter } from '../../../src/core/lending/debtor/memory-forecast.ts';

const figures = {
  ...{ rows: 0, decodeRows: 0, availableBlocks: 7, guaranteedBlocks: 0 },
  ...{ reservation: undefined, reservedSequences: 0, reservationsAdmitted: 0 },
};

it('counts a waiting prompt as starved of home memory, unless other sequences run', () => {
  const changed = (isStarved: boolean) => new DemandReporter().changed({ ...figures, aheadBlocks: 15, isStarved }, 0);
  expect(changed(true)?.starvedBlocks).toBe(8);
  expect(changed(false)?.starvedBlocks).toBe(0);
});

it('reports equal figures once', () => {
  const reporter = new DemandReporter();
  expect(reporter.changed({ ...figures, aheadBlocks: 15, isStarved: true }, 0)).toBeDefined();
  expect(reporter.changed({ ...figures, aheadBlocks: 15, isStarved: true }, 0)).toBeUndefined();
  expect(reporter.changed({ ...figures, aheadBlocks: 14, isStarved: true }, 0)?.starvedBlocks).toBe(7);
});
