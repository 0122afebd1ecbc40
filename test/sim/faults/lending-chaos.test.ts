// Lending under faults: whichever messages are lost or late and whichever instances fail, each page has one owner, debts agree and nothing leaks.
import { expect, it } from 'vitest';
import { LendingWorld } from '../../../src/sim/engine/lending/lending-world.ts';
import { addCounts, uncovered } from '../../../src/sim/faults/chaos-counts.ts';
import { lendingChaos, lendingWorld, runLendingChaos } from '../../../src/sim/faults/lending-chaos.ts';

it('breaks no rule over many seeds, and injects each fault and runs each handler', () => {
  const sum = Array.from({ length: 100 }, (_, i) => runLendingChaos(i + 1)).reduce(addCounts);
  const rare = ['late commit', 'late prepare'];
  expect(uncovered(lendingChaos, sum).filter((name) => !rare.includes(name))).toEqual([]);
});

it('is a function of its seed', () => {
  expect(runLendingChaos(7)).toEqual(runLendingChaos(7));
  expect(runLendingChaos(7)).not.toEqual(runLendingChaos(8));
});

it('loses nothing and borrows ahead without faults', () => {
  for (let seed = 1; seed <= 8; seed++) {
    const world = new LendingWorld(lendingWorld(seed, []));
    world.run(8_000_000);
    expect(world.totals.lostBlocks).toBe(0);
    world.stopLoad();
    world.run(4_000_000);
    world.checkAtRest();
    world.endAll();
    world.run(4_000_000);
    world.checkEmpty();
  }
});
