// Lending under faults: whatever is lost, doubled, late or dead, pages have one owner, debts are what they should be and nothing leaks.
import { expect, it } from 'vitest';
import { addCounts, createLendingWorld, neverHappened, runLendingChaos } from '../../../src/sim/lending/chaos.ts';

it('holds every rule over many seeds, each fault injected and each handler run', () => {
  const sum = runLendingChaos(1);
  for (let seed = 2; seed <= 100; seed++) addCounts(sum, runLendingChaos(seed));
  const rare = ['late commit', 'late prepare'];
  expect(neverHappened(sum).filter((name) => !rare.includes(name))).toEqual([]);
});

it('is a function of its seed', () => {
  expect(runLendingChaos(7)).toEqual(runLendingChaos(7));
  expect(runLendingChaos(7)).not.toEqual(runLendingChaos(8));
});

it('loses nothing and borrows ahead where nothing goes wrong', () => {
  for (let seed = 1; seed <= 8; seed++) {
    const world = createLendingWorld(seed, undefined);
    world.run(8_000_000);
    expect(world.counts.lostBlocks).toBe(0);
    world.hold();
    world.run(4_000_000);
    world.checkAtRest();
    world.endAll();
    world.run(4_000_000);
    world.checkEmpty();
  }
});
