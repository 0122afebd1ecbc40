// Rope tables against the formulas of each scaling kind.
import { expect, test } from 'vitest';
import { inverseFrequencies, ropeTable } from '../../src/graph/rope.ts';

const plain = { theta: 10_000, rotaryDim: 8, scaling: { kind: 'none' } } as const;

test('unscaled frequencies decrease geometrically from 1', () => {
  expect([...inverseFrequencies(plain, 6)]).toEqual([1, 10_000 ** -0.25, 10_000 ** -0.5, 10_000 ** -0.75]);
});

test('a row holds the cosines of all angles, then their sines', () => {
  const table = ropeTable(plain, 6);
  const angles = [...inverseFrequencies(plain, 6)].map((frequency) => 5 * frequency);
  const row = [...angles.map(Math.cos), ...angles.map(Math.sin)].map(Math.fround);
  expect([...table.subarray(5 * 8)]).toEqual(row);
  expect([...table.subarray(0, 8)]).toEqual([1, 1, 1, 1, 0, 0, 0, 0]);
});

test('linear scaling divides positions by the factor', () => {
  const table = ropeTable({ ...plain, scaling: { kind: 'linear', factor: 4 } }, 9);
  expect([...table.subarray(8 * 8)]).toEqual([...ropeTable(plain, 3).subarray(2 * 8)]);
});

test('llama3 scaling keeps short wavelengths, divides long ones, and is continuous at both ends of the ramp', () => {
  const scaling = {
    kind: 'llama3',
    factor: 8,
    lowFreqFactor: 1,
    highFreqFactor: 4,
    originalMaxPositions: 8192,
  } as const;
  const spec = { theta: 500_000, rotaryDim: 128, scaling };
  const before = inverseFrequencies({ ...spec, scaling: { kind: 'none' } }, 8192);
  const ratios = inverseFrequencies(spec, 8192).map((frequency, i) => frequency / before[i]);
  const wavelengths = before.map((frequency) => (2 * Math.PI) / frequency);
  for (const [i, wavelength] of wavelengths.entries()) {
    if (wavelength < 8192 / 4) expect(ratios[i]).toBe(1);
    else if (wavelength > 8192) expect(ratios[i]).toBeCloseTo(1 / 8, 12);
    else expect(ratios[i]).toBeCloseTo(1 / 8 + (7 / 8) * ((8192 / wavelength - 1) / 3), 12);
  }
  expect(ratios.filter((ratio) => ratio > 1 / 8 && ratio < 1).length).toBeGreaterThan(2);
});

test('explicit divisors divide the frequencies', () => {
  const divisors = [1, 2, 4, 8];
  const scaled = inverseFrequencies({ ...plain, scaling: { kind: 'divisors', divisors } }, 6);
  expect([...scaled]).toEqual([...inverseFrequencies(plain, 6)].map((frequency, i) => frequency / divisors[i]));
});

test('yarn keeps high frequencies, divides dimensions with less than one rotation, and is linear between', () => {
  const yarn = { kind: 'yarn', factor: 4, betaFast: 32, betaSlow: 1, truncate: true } as const;
  const spec = {
    theta: 1_000_000,
    rotaryDim: 128,
    scaling: { ...yarn, originalMaxPositions: 32_768, magnitude: 1.5 },
  };
  const before = inverseFrequencies({ ...spec, scaling: { kind: 'none' } }, 131_072);
  const ratios = [...inverseFrequencies(spec, 131_072)].map((frequency, i) => frequency / before[i]);
  const turns = [...before].map((frequency) => (32_768 * frequency) / (2 * Math.PI));
  for (const [i, ratio] of ratios.entries()) {
    if (turns[i] > 40) expect(ratio).toBe(1);
    else if (turns[i] < 0.8) expect(ratio).toBeCloseTo(1 / 4, 12);
  }
  const ramp = ratios.filter((_, i) => turns[i] <= 32 && turns[i] >= 1);
  const steps = ramp.slice(1).map((ratio, i) => ramp[i] - ratio);
  expect(steps.length).toBeGreaterThan(10);
  for (const step of steps) expect(step).toBeCloseTo(steps[0], 12);
  expect(steps[0]).toBeGreaterThan(0);
  expect(ropeTable(spec, 2)[0]).toBe(1.5);
});

test('longrope uses the short divisors up to the original positions, the long ones for a longer context', () => {
  const shortDivisors = [1, 1, 2, 2];
  const longDivisors = [1, 3, 5, 7];
  const scaling = { kind: 'longrope', shortDivisors, longDivisors, originalMaxPositions: 4, magnitude: 1.25 } as const;
  const frequencies = [...inverseFrequencies(plain, 4)];
  const spec = { ...plain, scaling };
  expect([...inverseFrequencies(spec, 4)]).toEqual(frequencies.map((frequency, i) => frequency / shortDivisors[i]));
  expect([...inverseFrequencies(spec, 5)]).toEqual(frequencies.map((frequency, i) => frequency / longDivisors[i]));
  expect(ropeTable(spec, 5)[8]).toBe(Math.fround(1.25 * Math.cos(1)));
});
