// Rope tables against the formulas of each scaling kind.
import { expect, test } from 'vitest';
import { inverseFrequencies, ropeTable } from '../../src/graph/rope.ts';

const plain = { theta: 10_000, rotaryDim: 8, scaling: { kind: 'none' } } as const;

test('plain frequencies fall geometrically from 1', () => {
  expect([...inverseFrequencies(plain)]).toEqual([1, 10_000 ** -0.25, 10_000 ** -0.5, 10_000 ** -0.75]);
});

test('a row holds the cosines of all angles, then their sines', () => {
  const table = ropeTable(plain, 6);
  const angles = [...inverseFrequencies(plain)].map((frequency) => 5 * frequency);
  const row = [...angles.map(Math.cos), ...angles.map(Math.sin)].map(Math.fround);
  expect([...table.subarray(5 * 8)]).toEqual(row);
  expect([...table.subarray(0, 8)]).toEqual([1, 1, 1, 1, 0, 0, 0, 0]);
});

test('linear scaling stretches positions', () => {
  const table = ropeTable({ ...plain, scaling: { kind: 'linear', factor: 4 } }, 9);
  expect([...table.subarray(8 * 8)]).toEqual([...ropeTable(plain, 3).subarray(2 * 8)]);
});

test('llama3 scaling keeps short wavelengths, divides long ones, and meets both ends of the ramp', () => {
  const scaling = {
    kind: 'llama3',
    factor: 8,
    lowFreqFactor: 1,
    highFreqFactor: 4,
    originalMaxPositions: 8192,
  } as const;
  const spec = { theta: 500_000, rotaryDim: 128, scaling };
  const before = inverseFrequencies({ ...spec, scaling: { kind: 'none' } });
  const ratios = inverseFrequencies(spec).map((frequency, i) => frequency / before[i]);
  const wavelengths = before.map((frequency) => (2 * Math.PI) / frequency);
  for (const [i, wavelength] of wavelengths.entries()) {
    if (wavelength < 8192 / 4) expect(ratios[i]).toBe(1);
    else if (wavelength > 8192) expect(ratios[i]).toBeCloseTo(1 / 8, 12);
    else expect(ratios[i]).toBeCloseTo(1 / 8 + (7 / 8) * ((8192 / wavelength - 1) / 3), 12);
  }
  expect(ratios.filter((ratio) => ratio > 1 / 8 && ratio < 1).length).toBeGreaterThan(2);
});

test('explicit divisors divide', () => {
  const divisors = [1, 2, 4, 8];
  const scaled = inverseFrequencies({ ...plain, scaling: { kind: 'divisors', divisors } });
  expect([...scaled]).toEqual([...inverseFrequencies(plain)].map((frequency, i) => frequency / divisors[i]));
});
