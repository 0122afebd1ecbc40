// What an instance tells its rManager of the memory that its sequences will need.
import { expect, it } from 'vitest';
import { DemandReporter } from '../../../src/core/lending/demand-report.ts';

const figures = { rows: 0, decodeRows: 0, available: 7, promised: 0, turn: undefined, gathered: 0, gatherings: 0 };

it('has what is lent recalled for a prompt that waits for home, and for nobody beside those who run', () => {
  expect(new DemandReporter().changed({ ...figures, ahead: 15, alone: true }, 0)?.starvedBlocks).toBe(8);
  expect(new DemandReporter().changed({ ...figures, ahead: 15, alone: false }, 0)?.starvedBlocks).toBe(0);
});

it('tells the same once', () => {
  const teller = new DemandReporter();
  expect(teller.changed({ ...figures, ahead: 15, alone: true }, 0)).toBeDefined();
  expect(teller.changed({ ...figures, ahead: 15, alone: true }, 0)).toBeUndefined();
  expect(teller.changed({ ...figures, ahead: 14, alone: true }, 0)?.starvedBlocks).toBe(7);
});
