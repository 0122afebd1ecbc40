// The demand that an instance reports to its rManager.
import { expect, it } from 'vitest';
import { DemandReporter } from '../../../src/core/lending/demand-report.ts';

const figures = { rows: 0, decodeRows: 0, available: 7, promised: 0, turn: undefined, gathered: 0, gatherings: 0 };

it('recalls lent memory for a prompt that waits for home memory, unless others run', () => {
  expect(new DemandReporter().changed({ ...figures, ahead: 15, alone: true }, 0)?.starvedBlocks).toBe(8);
  expect(new DemandReporter().changed({ ...figures, ahead: 15, alone: false }, 0)?.starvedBlocks).toBe(0);
});

it('reports equal figures once', () => {
  const teller = new DemandReporter();
  expect(teller.changed({ ...figures, ahead: 15, alone: true }, 0)).toBeDefined();
  expect(teller.changed({ ...figures, ahead: 15, alone: true }, 0)).toBeUndefined();
  expect(teller.changed({ ...figures, ahead: 14, alone: true }, 0)?.starvedBlocks).toBe(7);
});
