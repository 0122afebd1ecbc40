// Whose turn the gManager says it is to gather memory, whatever comes late.
import { expect, it } from 'vitest';
import { GManager } from '../../src/cluster/gmanager.ts';
import type { LendingMessage } from '../../src/cluster/lending/messages.ts';
import { defaultLendingTimes } from '../../src/cluster/lending/times.ts';

const turn = { number: 1, blocks: 8 };
const none = { device: 0, host: 0 };

function query(number: number): LendingMessage {
  return { kind: 'query', query: number, memory: 'device', blocks: 0, turn, prior: false, refusals: [] };
}

function heartbeat(sequence: number): LendingMessage {
  const report = { sequence, lendable: none, lendableInTime: none, turn: turn.number, debts: [], loans: [] };
  return { kind: 'heartbeat', report };
}

it('does not give the turn to one of whom nothing but a late query was heard', () => {
  const config = {
    epoch: 1,
    distance: () => 1,
    times: defaultLendingTimes,
    blocksMin: 1,
    blocksMax: 16,
    uniform: () => 0,
  };
  const gmanager = new GManager(config);
  const hear = (nowUs: number, from: number, message: LendingMessage) =>
    gmanager.step(nowUs, {
      kind: 'message',
      envelope: { from, fromLife: 1, to: 'gmanager', toLife: undefined, message },
    });
  hear(0, 3, query(9));
  hear(1000, 0, heartbeat(1));
  expect(gmanager.turns.holder).toBe(0);
  expect(hear(2000, 0, query(1))).toMatchObject([{ envelope: { message: { kind: 'candidates', turn: turn.number } } }]);
});
