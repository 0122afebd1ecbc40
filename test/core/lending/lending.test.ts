// Scenarios of lending: a few instances and a gManager on a network whose messages the test controls.
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

  /** Its own sequence takes all blocks except `blocks`. */
  leaveAvailable(blocks: number): void {
    this.memory.cache.release(this.table);
    while (this.memory.lending.device.totals.available > blocks) this.memory.cache.allocate(this.table);
  }

  owes(creditor: number): number {
    return this.rmanager.debtor.totals.find((debt) => debt.creditor === creditor)?.blocks ?? 0;
  }
}

class Cluster {
  nowUs = 0;
  readonly effects: { readonly instance: number; readonly effect: LendingEffect }[] = [];
  members: Member[];
  gmanager = this.#newGManager(1);
  #sent: Envelope[] = [];
  /** Messages of these kinds are lost. */
  lostKinds: readonly LendingMessageKind[] = [];
  /** Messages of those kinds to this instance are lost; undefined: of all kinds. */
  lostTo: number | undefined;
  readonly sentKinds: LendingMessageKind[] = [];

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
      rangeBlocks: 1,
      uniform: () => 0,
    });
  }

  /** Time advances by milliseconds; a message arrives one millisecond after it is sent. */
  run(ms: number): void {
    for (let i = 0; i < ms; i++) {
      this.nowUs += 1_000;
      for (const envelope of this.#sent.splice(0)) this.#deliver(envelope);
      this.#carryOut('gmanager', this.gmanager.step(this.nowUs, { kind: 'tick' }));
      for (const [instance, { rmanager, memory }] of this.members.entries()) {
        this.#carryOut(instance, rmanager.step(this.nowUs, { kind: 'tick' }));
        rmanager.check();
        memory.check();
      }
    }
  }

  drain(instance: number): void {
    this.#carryOut(instance, this.members[instance].rmanager.step(this.nowUs, { kind: 'drain' }));
  }

  #deliver(envelope: Envelope): void {
    const isAffected = this.lostTo === undefined || envelope.to === this.lostTo;
    if (isAffected && this.lostKinds.includes(envelope.message.kind)) return;
    const event = { kind: 'message', envelope } as const;
    if (envelope.to === 'gmanager') this.#carryOut('gmanager', this.gmanager.step(this.nowUs, event));
    else this.#carryOut(envelope.to, this.members[envelope.to].rmanager.step(this.nowUs, event));
  }

  #carryOut(from: number | 'gmanager', effects: readonly LendingEffect[]): void {
    for (const effect of effects) {
      if (effect.kind === 'send') {
        this.sentKinds.push(effect.envelope.message.kind);
        this.#sent.push(effect.envelope);
      } else if (from !== 'gmanager') this.effects.push({ instance: from, effect });
      if (effect.kind === 'stage' && from !== 'gmanager') {
        const { settlement } = effect;
        this.#carryOut(from, this.members[from].rmanager.step(this.nowUs, { kind: 'staged', settlement }));
      }
    }
  }
}

/** Each instance in turn borrows from the next, which is then the only one with free memory, and uses the blocks. */
function ringOfDebts(members: number): Cluster {
  const cluster = new Cluster(members);
  cluster.lostKinds = ['prepare'];
  for (let i = 0; i < members; i++) {
    const lender = (i + 1) % members;
    for (const [j, member] of cluster.members.entries()) member.leaveAvailable(j === lender ? 20 : 4);
    cluster.run(600);
    cluster.members[i].leaveAvailable(3);
    cluster.run(300);
    while (cluster.members[i].rmanager.take() !== undefined);
    for (const member of cluster.members) member.leaveAvailable(6);
    cluster.run(600);
  }
  return cluster;
}

describe('a loan', () => {
  it('is granted before the pool is full, by the nearest creditor, and returned when idle', () => {
    const cluster = new Cluster(3);
    cluster.run(300);
    cluster.members[0].leaveAvailable(3);
    cluster.run(300);
    const { rmanager } = cluster.members[0];
    expect(cluster.members[0].owes(1)).toBeGreaterThanOrEqual(4);
    const rblock = rmanager.take() ?? 0;
    expect(rmanager.find(rblock)).toMatchObject({ kind: 'remote', instance: 1, memory: 'device' });
    rmanager.free(rblock);
    cluster.members[0].leaveAvailable(20);
    cluster.run(1_000);
    expect([cluster.members[0].owes(1), cluster.members[1].memory.heldPages]).toEqual([0, 0]);
  });

  it('is refused by a creditor that is short, and granted by the next', () => {
    const cluster = new Cluster(3);
    cluster.run(300);
    // It has filled up since its heartbeat.
    cluster.members[1].leaveAvailable(4);
    cluster.members[0].leaveAvailable(3);
    cluster.run(200);
    expect(cluster.sentKinds).toContain('refuse');
    expect([cluster.members[0].owes(1), cluster.members[0].owes(2)]).toEqual([0, 4]);
  });

  it('is given up by its debtor before the creditor reclaims it, when renewals are lost', () => {
    const cluster = new Cluster(2);
    cluster.run(300);
    cluster.members[0].leaveAvailable(3);
    cluster.run(100);
    const rblock = cluster.members[0].rmanager.take() ?? 0;
    cluster.lostKinds = ['renew', 'query'];
    let stoppedUs = 0;
    while (cluster.members[1].memory.heldPages > 0) {
      cluster.run(1);
      if (stoppedUs === 0 && cluster.members[0].rmanager.find(rblock) === undefined) stoppedUs = cluster.nowUs;
      expect(cluster.nowUs).toBeLessThan(5e6);
    }
    expect(stoppedUs).toBeGreaterThan(0);
    expect(stoppedUs).toBeLessThan(cluster.nowUs);
    expect(cluster.effects.some(({ effect }) => effect.kind === 'rblocksLost' && effect.rblocks.includes(rblock))).toBe(
      true,
    );
  });

  it('is recalled when its creditor drains, which lends nothing more', () => {
    const cluster = new Cluster(2);
    cluster.run(300);
    const [debtor, creditor] = cluster.members;
    debtor.leaveAvailable(3);
    cluster.run(100);
    const used = [debtor.rmanager.take(), debtor.rmanager.take(), debtor.rmanager.take()];
    expect(used).not.toContain(undefined);
    const lent = creditor.memory.heldPages;
    expect(lent).toBeGreaterThan(3);
    cluster.drain(1);
    cluster.run(10);
    // Blocks without a sequence are returned at once; the sequence moves its own.
    expect(creditor.memory.heldPages).toBe(3);
    const vacated = cluster.effects.flatMap(({ effect }) => (effect.kind === 'vacate' ? effect.rblocks : []));
    expect(new Set(vacated)).toEqual(new Set(used));
    for (const rblock of vacated) debtor.rmanager.free(rblock);
    cluster.run(2_000);
    // The debtor still has a demand.
    expect(debtor.rmanager.isShort).toBe(true);
    expect([debtor.owes(1), creditor.memory.heldPages]).toEqual([0, 0]);
  });

  it('is freed at once when its debtor restarts', () => {
    const cluster = new Cluster(2);
    cluster.run(300);
    cluster.members[0].leaveAvailable(3);
    cluster.run(100);
    expect(cluster.members[1].memory.heldPages).toBeGreaterThan(0);
    cluster.members[0] = new Member(0, 2);
    cluster.members[0].leaveAvailable(3);
    cluster.run(100);
    expect(cluster.members[0].owes(1)).toBe(cluster.members[1].memory.heldPages);
  });

  /** Instance 0 borrows from instance 1, and returns the blocks while messages of a kind are lost. */
  function returning(lostKind: LendingMessageKind): Cluster {
    const cluster = new Cluster(2);
    cluster.run(300);
    cluster.members[0].leaveAvailable(3);
    cluster.run(100);
    expect(cluster.members[1].memory.heldPages).toBeGreaterThan(0);
    cluster.lostKinds = [lostKind];
    cluster.members[0].leaveAvailable(20);
    for (let ms = 0; ms < 1_000 && !cluster.sentKinds.includes('return'); ms++) cluster.run(1);
    cluster.run(2);
    return cluster;
  }

  const count = ({ sentKinds }: Cluster, kind: LendingMessageKind): number =>
    sentKinds.filter((each) => each === kind).length;

  it('is returned again until the return is acknowledged, when a return is lost', () => {
    const cluster = returning('return');
    expect(count(cluster, 'return')).toBe(1);
    const [debt] = cluster.members[0].rmanager.debts;
    const blocks = debt.returning.size;
    expect(blocks).toBeGreaterThan(0);
    expect(cluster.members[1].memory.heldPages).toBe(blocks);
    cluster.lostKinds = [];
    // Less than a lease: nothing but the repeated return frees the blocks.
    cluster.run(times.renewUs / 1_000 + 10);
    expect([count(cluster, 'return'), count(cluster, 'returned')]).toEqual([2, 1]);
    expect(cluster.members[1].memory.heldPages).toBe(0);
    expect([...cluster.members[0].rmanager.debts]).toEqual([]);
    cluster.run(1_000);
    expect(count(cluster, 'return')).toBe(2);
  });

  it('has its duplicate return acknowledged again, which changes nothing, when an acknowledgement is lost', () => {
    const cluster = returning('returned');
    expect([count(cluster, 'return'), count(cluster, 'returned')]).toEqual([1, 1]);
    // The creditor has its blocks back; its debtor still waits for the acknowledgement.
    expect(cluster.members[1].memory.heldPages).toBe(0);
    const [debt] = cluster.members[0].rmanager.debts;
    expect(debt.returning.size).toBeGreaterThan(0);
    cluster.lostKinds = [];
    const { totals } = cluster.members[1].memory.lending.device;
    const before = { ...totals };
    cluster.run(times.renewUs / 1_000 + 10);
    expect([count(cluster, 'return'), count(cluster, 'returned')]).toEqual([2, 2]);
    expect(cluster.members[1].memory.lending.device.totals).toEqual(before);
    expect([...cluster.members[0].rmanager.debts]).toEqual([]);
  });

  it('is recalled when its creditor runs short, and vacated', () => {
    const cluster = new Cluster(2);
    cluster.run(300);
    cluster.members[0].leaveAvailable(3);
    cluster.run(100);
    const { rmanager } = cluster.members[0];
    const used = [rmanager.take(), rmanager.take(), rmanager.take(), rmanager.take()];
    expect(used).not.toContain(undefined);
    cluster.lostKinds = ['recall'];
    cluster.members[1].leaveAvailable(0);
    // The recall is lost, so a renewal carries it.
    cluster.run(700);
    const vacate = cluster.effects.flatMap(({ effect }) => (effect.kind === 'vacate' ? effect.rblocks : []));
    expect(vacate.length).toBe(1);
    rmanager.free(vacate[0]);
    cluster.run(10);
    expect(cluster.members[0].owes(1)).toBe(3);
  });
});

describe('a reservation', () => {
  it('is not granted to a departed instance whose query arrives late', () => {
    const cluster = new Cluster(3);
    cluster.run(300);
    cluster.members.pop();
    cluster.run(times.silentUs / 1_000 + 1);
    const reservation = { number: 1, blocks: 24 };
    const query = {
      kind: 'query',
      query: 1,
      memory: 'device',
      blocks: 0,
      reservation,
      urgent: false,
      refusals: [],
    } as const;
    const envelope = { from: 2, fromIncarnation: 1, to: 'gmanager', toIncarnation: undefined, message: query } as const;
    cluster.gmanager.step(cluster.nowUs, { kind: 'message', envelope });
    const [{ rmanager }] = cluster.members;
    rmanager.step(cluster.nowUs, { ...noDemand, reservation });
    cluster.run(times.silentUs / 1_000 + 1);
    expect(rmanager.holdsReservation).toBe(true);
  });
});

describe('remote attention', () => {
  it("returns blocks in proportion when its load exceeds the creditor's bound", () => {
    const cluster = new Cluster(2);
    cluster.run(300);
    cluster.members[0].leaveAvailable(3);
    cluster.run(100);
    const { rmanager } = cluster.members[0];
    while (rmanager.take() !== undefined);
    const [debt] = rmanager.debts;
    expect([debt.held, debt.remoteAttentionPermille]).toEqual([4, 200]);
    const load = { kind: 'remoteAttentionLoad', creditor: 1, permille: 400 } as const;
    const effects = rmanager.step(cluster.nowUs, load);
    const vacate = effects.flatMap((effect) => (effect.kind === 'vacate' ? effect.rblocks : []));
    expect(vacate.length).toBe(2);
  });
});

describe('settlement', () => {
  it.each([2, 3, 4])('brings every block of a cycle of %i home', (members) => {
    const cluster = ringOfDebts(members);
    const before = cluster.members.map((member, i) => member.owes((i + 1) % members));
    const least = Math.min(...before);
    expect(least).toBeGreaterThan(0);
    cluster.lostKinds = [];
    cluster.run(1_500);
    expect(cluster.members.map((member, i) => member.owes((i + 1) % members))).toEqual(
      before.map((debt) => debt - least),
    );
    for (const { rmanager } of cluster.members) {
      const kinds = [...rmanager.table.entries()].map(([, { kind }]) => kind);
      expect(kinds.filter((kind) => kind === 'home').length).toBe(least);
    }
    expect(cluster.effects.filter(({ effect }) => effect.kind === 'rblocksLost')).toEqual([]);
  });

  it('is aborted by the next gManager after a gManager crash, and then done', () => {
    const cluster = ringOfDebts(3);
    const before = cluster.members.map((member, i) => member.owes((i + 1) % 3));
    cluster.lostKinds = ['commit'];
    for (let ms = 0; ms < 2_000 && !cluster.sentKinds.includes('commit'); ms++) cluster.run(1);
    expect(cluster.sentKinds).toContain('commit');
    cluster.restartGManager();
    cluster.run(400);
    expect(cluster.members.map((member, i) => member.owes((i + 1) % 3))).toEqual(before);
    cluster.lostKinds = [];
    cluster.run(2_000);
    expect(Math.min(...cluster.members.map((member, i) => member.owes((i + 1) % 3)))).toBe(0);
  });

  it('with a commit that reaches only some members brings their blocks home by recall, and loses nothing', () => {
    const cluster = ringOfDebts(3);
    cluster.lostKinds = ['commit'];
    cluster.lostTo = 1;
    // One block at home is free besides the returned ones.
    for (const member of cluster.members) member.leaveAvailable(1);
    for (let ms = 0; ms < 2_000 && !cluster.sentKinds.includes('settled'); ms++) cluster.run(1);
    expect(cluster.sentKinds).toContain('settled');
    cluster.restartGManager();
    cluster.lostKinds = [];
    const kinds = (member: Member) => [...member.rmanager.table.entries()].map(([, { kind }]) => kind);
    const vacated = new Set<number>();
    for (let ms = 0; ms < 1_500; ms++) {
      cluster.run(1);
      const { rmanager } = cluster.members[1];
      for (const { instance, effect } of cluster.effects) {
        if (effect.kind !== 'vacate' || instance !== 1) continue;
        for (const rblock of effect.rblocks) {
          if (!vacated.has(rblock)) rmanager.free(rblock);
          vacated.add(rblock);
        }
      }
    }
    expect(vacated.size).toBeGreaterThan(0);
    expect(kinds(cluster.members[2])).not.toContain('staged');
    expect(kinds(cluster.members[0])).not.toContain('staged');
    expect(cluster.effects.filter(({ effect }) => effect.kind === 'rblocksLost')).toEqual([]);
  });
});
