// Scenarios of lending: two or three instances and a gManager on a network whose messages the test controls.
import { describe, expect, it } from 'vitest';
import { BlockTable } from '../../../src/core/kvcache/block-table.ts';
import { InstanceMemory } from '../../../src/core/lending/instance-memory.ts';
import { GManager } from '../../../src/core/lending/manager/gmanager.ts';
import { noDemand, RManager } from '../../../src/core/lending/rmanager.ts';
import { defaultLendingTimes as times } from '../../../src/core/lending/times.ts';
import type { Envelope, LendingEffect, LendingMessageKind } from '../../../src/core/protocol/lending-messages.ts';

const policy = {
  lentShareMax: 0.5,
  lowWaterBlocks: 4,
  highWaterBlocks: 12,
  recallBlocks: 1,
  lookAheadUs: 100_000,
  loanBlocksMin: 4,
  remoteAttentionPermilleMax: 200,
};

/** One instance of 20 blocks, whose sequence the test grows and shrinks. */
class Member {
  readonly memory = new InstanceMemory(
    { pages: 20, blockTokens: 1, groups: [{ layers: 1, window: undefined }], eviction: 'lru' },
    0,
  );
  readonly table = new BlockTable(1);
  readonly rmanager: RManager;

  constructor(instance: number, incarnation: number) {
    const memories = this.memory.lending;
    this.rmanager = new RManager({ instance, incarnation, memories, policy, times, stagingBlocks: 16 });
  }

  /** Its own sequence takes all but `blocks`. */
  leave(blocks: number): void {
    this.memory.cache.release(this.table);
    while (this.memory.lending.device.totals.available > blocks) this.memory.cache.allocate(this.table);
  }

  owes(creditor: number): number {
    return this.rmanager.debtor.totals.find((debt) => debt.creditor === creditor)?.blocks ?? 0;
  }
}

class Town {
  nowUs = 0;
  readonly effects: { readonly instance: number; readonly effect: LendingEffect }[] = [];
  members: Member[];
  gmanager = this.#newGManager(1);
  #sent: Envelope[] = [];
  /** Messages of these kinds are lost. */
  losing: readonly LendingMessageKind[] = [];
  /** Messages of those kinds to this instance are lost; undefined: of all kinds. */
  losingTo: number | undefined;
  readonly said: LendingMessageKind[] = [];

  constructor(members: number) {
    this.members = Array.from({ length: members }, (_, i) => new Member(i, 1));
  }

  restartGManager(): void {
    this.gmanager = this.#newGManager(2);
  }

  #newGManager(epoch: number): GManager {
    return new GManager({
      epoch,
      times,
      blocksMin: 1,
      blocksMax: 16,
      uniform: () => 0,
      distance: (a, b) => Math.abs(a - b),
    });
  }

  /** Time advances by milliseconds; a message arrives one millisecond after it is sent. */
  run(ms: number): void {
    for (let i = 0; i < ms; i++) {
      this.nowUs += 1_000;
      for (const envelope of this.#sent.splice(0)) this.#deliver(envelope);
      this.#take('gmanager', this.gmanager.step(this.nowUs, { kind: 'tick' }));
      for (const [instance, { rmanager, memory }] of this.members.entries()) {
        this.#take(instance, rmanager.step(this.nowUs, { kind: 'tick' }));
        rmanager.check();
        memory.check();
      }
    }
  }

  #deliver(envelope: Envelope): void {
    const meant = this.losingTo === undefined || envelope.to === this.losingTo;
    if (meant && this.losing.includes(envelope.message.kind)) return;
    const event = { kind: 'message', envelope } as const;
    if (envelope.to === 'gmanager') this.#take('gmanager', this.gmanager.step(this.nowUs, event));
    else this.#take(envelope.to, this.members[envelope.to].rmanager.step(this.nowUs, event));
  }

  #take(from: number | 'gmanager', effects: readonly LendingEffect[]): void {
    for (const effect of effects) {
      if (effect.kind === 'send') {
        this.said.push(effect.envelope.message.kind);
        this.#sent.push(effect.envelope);
      } else if (from !== 'gmanager') this.effects.push({ instance: from, effect });
      if (effect.kind === 'stage' && from !== 'gmanager') {
        const { settlement } = effect;
        this.#take(from, this.members[from].rmanager.step(this.nowUs, { kind: 'staged', settlement }));
      }
    }
  }
}

/** Each instance in turn borrows from the next while that one is empty, and uses what it borrowed. */
function ringOfDebts(members: number): Town {
  const town = new Town(members);
  town.losing = ['prepare'];
  for (let i = 0; i < members; i++) {
    const lender = (i + 1) % members;
    for (const [j, member] of town.members.entries()) member.leave(j === lender ? 20 : 4);
    town.run(600);
    town.members[i].leave(3);
    town.run(300);
    while (town.members[i].rmanager.take() !== undefined);
    for (const member of town.members) member.leave(6);
    town.run(600);
  }
  return town;
}

describe('a loan', () => {
  it('is granted before the pool is full, by the nearest creditor, and returned when unneeded', () => {
    const town = new Town(3);
    town.run(300);
    town.members[0].leave(3);
    town.run(300);
    const { rmanager } = town.members[0];
    expect(town.members[0].owes(1)).toBeGreaterThanOrEqual(4);
    const rblock = rmanager.take() ?? 0;
    expect(rmanager.find(rblock)).toMatchObject({ kind: 'remote', instance: 1, memory: 'device' });
    rmanager.free(rblock);
    town.members[0].leave(20);
    town.run(1_000);
    expect([town.members[0].owes(1), town.members[1].memory.heldPages]).toEqual([0, 0]);
  });

  it('is refused by a creditor that is short, and granted by the next', () => {
    const town = new Town(3);
    town.run(300);
    // It has filled up since its heartbeat.
    town.members[1].leave(4);
    town.members[0].leave(3);
    town.run(200);
    expect(town.said).toContain('refuse');
    expect([town.members[0].owes(1), town.members[0].owes(2)]).toEqual([0, 4]);
  });

  it('is no longer used when it cannot be renewed, before the creditor reclaims it', () => {
    const town = new Town(2);
    town.run(300);
    town.members[0].leave(3);
    town.run(100);
    const rblock = town.members[0].rmanager.take() ?? 0;
    town.losing = ['renew', 'query'];
    let stoppedUs = 0;
    while (town.members[1].memory.heldPages > 0) {
      town.run(1);
      if (stoppedUs === 0 && town.members[0].rmanager.find(rblock) === undefined) stoppedUs = town.nowUs;
      expect(town.nowUs).toBeLessThan(5e6);
    }
    expect(stoppedUs).toBeGreaterThan(0);
    expect(stoppedUs).toBeLessThan(town.nowUs);
    expect(town.effects.some(({ effect }) => effect.kind === 'rblocksLost' && effect.rblocks.includes(rblock))).toBe(
      true,
    );
  });

  it('is freed at once when its debtor crashes and restarts', () => {
    const town = new Town(2);
    town.run(300);
    town.members[0].leave(3);
    town.run(100);
    expect(town.members[1].memory.heldPages).toBeGreaterThan(0);
    town.members[0] = new Member(0, 2);
    town.members[0].leave(3);
    town.run(100);
    expect(town.members[0].owes(1)).toBe(town.members[1].memory.heldPages);
  });

  /** Instance 0 borrows from instance 1, and needs the blocks no more while messages of a kind are lost. */
  function returning(losing: LendingMessageKind): Town {
    const town = new Town(2);
    town.run(300);
    town.members[0].leave(3);
    town.run(100);
    expect(town.members[1].memory.heldPages).toBeGreaterThan(0);
    town.losing = [losing];
    town.members[0].leave(20);
    for (let ms = 0; ms < 1_000 && !town.said.includes('return'); ms++) town.run(1);
    town.run(2);
    return town;
  }

  const count = ({ said }: Town, kind: LendingMessageKind): number => said.filter((each) => each === kind).length;

  it('is returned again until the return is acknowledged, when a return is lost', () => {
    const town = returning('return');
    expect(count(town, 'return')).toBe(1);
    const [debt] = town.members[0].rmanager.debts;
    const blocks = debt.returning.size;
    expect(blocks).toBeGreaterThan(0);
    expect(town.members[1].memory.heldPages).toBe(blocks);
    town.losing = [];
    // Less than a lease: nothing but the repeated return frees the blocks.
    town.run(times.renewUs / 1_000 + 10);
    expect([count(town, 'return'), count(town, 'returned')]).toEqual([2, 1]);
    expect(town.members[1].memory.heldPages).toBe(0);
    expect([...town.members[0].rmanager.debts]).toEqual([]);
    town.run(1_000);
    expect(count(town, 'return')).toBe(2);
  });

  it('has its duplicate return acknowledged again, which changes nothing, when an acknowledgement is lost', () => {
    const town = returning('returned');
    expect([count(town, 'return'), count(town, 'returned')]).toEqual([1, 1]);
    // The creditor has its blocks back; its debtor still waits for the acknowledgement.
    expect(town.members[1].memory.heldPages).toBe(0);
    const [debt] = town.members[0].rmanager.debts;
    expect(debt.returning.size).toBeGreaterThan(0);
    town.losing = [];
    const { totals } = town.members[1].memory.lending.device;
    const before = { ...totals };
    town.run(times.renewUs / 1_000 + 10);
    expect([count(town, 'return'), count(town, 'returned')]).toEqual([2, 2]);
    expect(town.members[1].memory.lending.device.totals).toEqual(before);
    expect([...town.members[0].rmanager.debts]).toEqual([]);
  });

  it('is recalled when its creditor runs short, and vacated', () => {
    const town = new Town(2);
    town.run(300);
    town.members[0].leave(3);
    town.run(100);
    const { rmanager } = town.members[0];
    const used = [rmanager.take(), rmanager.take(), rmanager.take(), rmanager.take()];
    expect(used).not.toContain(undefined);
    town.losing = ['recall'];
    town.members[1].leave(0);
    // The recall is lost, so a renewal carries it.
    town.run(700);
    const vacate = town.effects.flatMap(({ effect }) => (effect.kind === 'vacate' ? effect.rblocks : []));
    expect(vacate.length).toBe(1);
    rmanager.free(vacate[0]);
    town.run(10);
    expect(town.members[0].owes(1)).toBe(3);
  });
});

describe('a reservation', () => {
  it('is not held by a departed instance whose query arrives late', () => {
    const town = new Town(3);
    town.run(300);
    town.members.pop();
    town.run(times.silentUs / 1_000 + 1);
    const turn = { number: 1, blocks: 24 };
    const query = {
      kind: 'query',
      query: 1,
      memory: 'device',
      blocks: 0,
      reservation: turn,
      urgent: false,
      refusals: [],
    } as const;
    const envelope = { from: 2, fromIncarnation: 1, to: 'gmanager', toIncarnation: undefined, message: query } as const;
    town.gmanager.step(town.nowUs, { kind: 'message', envelope });
    const [{ rmanager }] = town.members;
    rmanager.step(town.nowUs, { ...noDemand, reservation: turn });
    town.run(times.silentUs / 1_000 + 1);
    expect(rmanager.holdsReservation).toBe(true);
  });
});

describe('remote attention', () => {
  it("returns blocks as far as its load exceeds the creditor's bound", () => {
    const town = new Town(2);
    town.run(300);
    town.members[0].leave(3);
    town.run(100);
    const { rmanager } = town.members[0];
    while (rmanager.take() !== undefined);
    const [debt] = rmanager.debts;
    expect([debt.held, debt.remoteAttentionPermille]).toEqual([4, 200]);
    const load = { kind: 'remoteAttentionLoad', creditor: 1, permille: 400 } as const;
    const effects = rmanager.step(town.nowUs, load);
    const vacate = effects.flatMap((effect) => (effect.kind === 'vacate' ? effect.rblocks : []));
    expect(vacate.length).toBe(2);
  });
});

describe('settlement', () => {
  it.each([2, 3, 4])('brings every block of a cycle of %i home', (members) => {
    const town = ringOfDebts(members);
    const before = town.members.map((member, i) => member.owes((i + 1) % members));
    const least = Math.min(...before);
    expect(least).toBeGreaterThan(0);
    town.losing = [];
    town.run(1_500);
    expect(town.members.map((member, i) => member.owes((i + 1) % members))).toEqual(before.map((debt) => debt - least));
    for (const { rmanager } of town.members) {
      const kinds = [...rmanager.table.entries()].map(([, { kind }]) => kind);
      expect(kinds.filter((kind) => kind === 'home').length).toBe(least);
    }
    expect(town.effects.filter(({ effect }) => effect.kind === 'rblocksLost')).toEqual([]);
  });

  it('interrupted by a gManager crash is aborted by the next gManager, and then done', () => {
    const town = ringOfDebts(3);
    const before = town.members.map((member, i) => member.owes((i + 1) % 3));
    town.losing = ['commit'];
    for (let ms = 0; ms < 2_000 && !town.said.includes('commit'); ms++) town.run(1);
    expect(town.said).toContain('commit');
    town.restartGManager();
    town.run(400);
    expect(town.members.map((member, i) => member.owes((i + 1) % 3))).toEqual(before);
    town.losing = [];
    town.run(2_000);
    expect(Math.min(...town.members.map((member, i) => member.owes((i + 1) % 3)))).toBe(0);
  });

  it('whose commit reaches only some members: they get their blocks home by recall, and nothing is lost', () => {
    const town = ringOfDebts(3);
    town.losing = ['commit'];
    town.losingTo = 1;
    // One block at home is free besides the returned ones.
    for (const member of town.members) member.leave(1);
    for (let ms = 0; ms < 2_000 && !town.said.includes('settled'); ms++) town.run(1);
    expect(town.said).toContain('settled');
    town.restartGManager();
    town.losing = [];
    const kinds = (member: Member) => [...member.rmanager.table.entries()].map(([, { kind }]) => kind);
    const vacated = new Set<number>();
    for (let ms = 0; ms < 1_500; ms++) {
      town.run(1);
      const { rmanager } = town.members[1];
      for (const { instance, effect } of town.effects) {
        if (effect.kind !== 'vacate' || instance !== 1) continue;
        for (const rblock of effect.rblocks) {
          if (!vacated.has(rblock)) rmanager.free(rblock);
          vacated.add(rblock);
        }
      }
    }
    expect(vacated.size).toBeGreaterThan(0);
    expect(kinds(town.members[2])).not.toContain('staged');
    expect(kinds(town.members[0])).not.toContain('staged');
    expect(town.effects.filter(({ effect }) => effect.kind === 'rblocksLost')).toEqual([]);
  });
});
