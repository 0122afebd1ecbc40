// The soak bench's test of whether the memory of an idle process has settled.
import { expect, test } from 'vitest';
import { settledMemory } from '../../src/bench/soak/settle.ts';

const [quietMs, stillUnchanged] = [1000, 6];

/** Resident bytes in sequence; the last value repeats. */
function serverOf(...resident: readonly number[]) {
  const pauses: number[] = [];
  let measured = 0;
  const measure = async () => ({
    residentBytes: resident[Math.min(measured++, resident.length - 1)] ?? 0,
    heapBytes: measured,
  });
  const pause = async (ms: number) => void pauses.push(ms);
  return { pauses, run: () => settledMemory(measure, quietMs, pause) };
}

test('waits through a plateau until the allocators have released unused memory', async () => {
  const server = serverOf(250_000, 249_990, 249_990, 234_000, 234_000, 202_000, 200_000);
  expect(await server.run()).toMatchObject({ residentBytes: 200_000 });
  expect(server.pauses).toEqual(Array(6 + stillUnchanged).fill(quietMs));
});

test('a process that releases nothing is measured by its current value, not its lowest', async () => {
  const server = serverOf(200_000, 200_400, 200_800, 201_200, 201_600, 202_000, 202_400);
  expect(await server.run()).toMatchObject({ residentBytes: 202_400 });
  expect(server.pauses).toHaveLength(stillUnchanged);
});

test('a process that never settles is measured too', async () => {
  const falling = Array.from({ length: 100 }, (_, at) => 1e6 - at * 5000);
  const server = serverOf(...falling);
  expect(await server.run()).toMatchObject({ residentBytes: 1e6 - 39 * 5000 });
});

test('a remote server has no measurable memory', async () => {
  expect(await settledMemory(undefined, quietMs)).toBeUndefined();
});
