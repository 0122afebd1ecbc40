// An admission hold of a creditor ends as soon as the reservation that it serves ends.
import { expect, it } from 'vitest';
import { LendingMemory } from '../../../src/core/kvcache/lending-memory.ts';
import { Creditor } from '../../../src/core/lending/creditor/creditor.ts';
import { Debtor } from '../../../src/core/lending/debtor/debtor.ts';
import type { LendingPolicy } from '../../../src/core/lending/lending-policy.ts';
import { Outbox } from '../../../src/core/lending/outbox.ts';
import { RBlockTable } from '../../../src/core/lending/rblock-table.ts';
import { defaultLendingTimes as times } from '../../../src/core/lending/times.ts';
import type { LendingMessage } from '../../../src/core/protocol/lending-messages.ts';
import { promptOf, request } from '../instance-world.ts';
import { BorrowWorld } from './borrow-world.ts';

const policy: LendingPolicy = {
  ...{ lentShareMax: 1, lowWaterBlocks: 0, highWaterBlocks: 0, recallBlocks: 0, lookAheadUs: 0 },
  ...{ loanBlocksMin: 1, remoteAttentionPermilleMax: 300, unitBlocks: 1 },
};

function creditorOf(instance: number, guaranteedBlocks: number): { readonly creditor: Creditor; readonly out: Outbox } {
  const out = new Outbox(instance, 1);
  const memories = { device: LendingMemory.standalone(10, 1), host: LendingMemory.standalone(0, 1) };
  return {
    out,
    creditor: new Creditor(memories, policy, times, out, {
      isShort: false,
      isDraining: false,
      guaranteedBlocks,
      guaranteedMissingBlocks: 0,
    }),
  };
}

function messageOf<K extends LendingMessage['kind']>(out: Outbox, kind: K, to: number) {
  for (const effect of out.effects) {
    if (effect.kind !== 'send' || effect.envelope.to !== to || effect.envelope.message.kind !== kind) continue;
    return { envelope: effect.envelope, message: effect.envelope.message as Extract<LendingMessage, { kind: K }> };
  }
  throw new Error(`Cannot find ${kind} to ${to}`);
}

it('ends the hold of a creditor that lent nothing when the loans are guaranteed', () => {
  const out = new Outbox(0, 1);
  const debtor = new Debtor(times, out, new RBlockTable(), policy);
  const full = creditorOf(1, 10);
  const free = creditorOf(2, 0);
  const priority = { reserves: true, urgent: false };
  const ask = (to: number) => {
    debtor.ask(to, 1, 'device', 4, priority);
    return messageOf(out, 'borrow', to);
  };
  out.begin(1);
  const first = ask(1);
  full.creditor.borrow(first.envelope, first.message, 1);
  expect(messageOf(full.out, 'refuse', 0).message.loan).toBe(1);
  expect(full.creditor.hold).toBe(1);
  for (const debt of [...debtor.debts]) debtor.forget(debt);
  const second = ask(2);
  free.creditor.borrow(second.envelope, second.message, 1);
  const lend = messageOf(free.out, 'lend', 0);
  debtor.lent(lend.envelope, lend.message);

  debtor.guaranteeLoans();
  debtor.flush();
  const renewal = messageOf(out, 'renew', 1);
  full.creditor.renew(renewal.envelope, renewal.message);
  expect(full.creditor.hold).toBeUndefined();
  expect(messageOf(out, 'renew', 2).message).toMatchObject({ loans: [2], committed: [2], reservationEnded: true });

  out.begin(times.renewUs + 1);
  debtor.flush();
  expect(() => messageOf(out, 'renew', 1)).toThrow();
});

it('ends a hold at once when the reserving request is cancelled', () => {
  const world = new BorrowWorld({ blocks: [64, 64, 64], settles: false, seed: 1 });
  const holds = () =>
    world.instances.filter(({ components: { borrower } }) => borrower?.rmanager.creditor.hold !== undefined).length;
  for (const at of [1, 2]) {
    const one = request(`busy${at}`, promptOf(at, 1_800), { maxTokens: 200 });
    world.submit(one, at);
    world.until('an answer', () => world.tokensOf(one.id).length > 0);
  }
  world.submit(request('long', promptOf(3, 3_000), { maxTokens: 10 }), 0);
  world.until('a hold', () => holds() > 0);
  const cancelledUs = world.nowUs;
  world.cancel('long');
  world.until('no holds', () => holds() === 0);
  expect(world.nowUs - cancelledUs).toBeLessThan(world.holdUs / 10);
  world.finish();
});
