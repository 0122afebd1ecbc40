// Leader election among members with skewed clocks over a record; responses are late or lost, also after a successful write.

import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  Election,
  type ElectionEffect,
  type ElectionEvent,
  type LeaseRecord,
  defaultElectionTimes as times,
} from '../../../src/core/membership/election.ts';
import { Prng } from '../../../src/util/prng.ts';

interface Member {
  readonly election: Election;
  readonly skewUs: number;
  up: boolean;
  incarnation: number;
}

/** A record, its members, and the messages between them; time moves in steps of 10 ms. */
class World {
  nowUs = 0;
  readonly epochs: number[] = [];
  record: LeaseRecord | undefined;
  revision = 0;
  #recordLost = false;
  readonly members: Member[];
  readonly #random: Prng;
  faulty: boolean;
  #queue: { readonly atUs: number; readonly act: () => void }[] = [];

  constructor(seed: number, count: number, faulty: boolean) {
    this.#random = new Prng(seed, 1);
    this.faulty = faulty;
    this.members = Array.from({ length: count }, (_, i) => this.#member(i, 0));
  }

  #member(index: number, incarnation: number): Member {
    const skewMs = this.#random.integer(0, 1e6);
    const past = { recordLost: this.#recordLost, originMs: -skewMs };
    return { election: new Election(`m${index}.${incarnation}`, past), skewUs: skewMs * 1000, up: true, incarnation };
  }

  run(untilUs: number): void {
    for (; this.nowUs < untilUs; this.nowUs += 10_000) {
      const due = this.#queue.filter(({ atUs }) => atUs <= this.nowUs);
      this.#queue = this.#queue.filter(({ atUs }) => atUs > this.nowUs);
      for (const { act } of due) act();
      for (const member of this.members) {
        const stalls = this.faulty && this.#random.chance(1 / 400);
        if (member.up && !stalls && member.election.nextUs <= this.nowUs + member.skewUs)
          this.step(member, { kind: 'wake' });
      }
      this.check();
    }
  }

  step(member: Member, event: ElectionEvent): void {
    for (const effect of member.election.step(this.nowUs + member.skewUs, event)) this.#perform(member, effect);
  }

  #perform(member: Member, effect: ElectionEffect): void {
    if (effect.kind === 'elected') this.epochs.push(effect.epoch);
    if (effect.kind !== 'read' && effect.kind !== 'write') return;
    const lost = this.faulty && this.#random.chance(0.1);
    const delayUs = () => this.#random.integer(0, this.faulty ? 400_000 : 5_000);
    this.#queue.push({
      atUs: this.nowUs + delayUs(),
      act: () => {
        // A write without a response may have succeeded.
        const done = !lost || this.#random.chance(0.5);
        const answer: ElectionEvent = done ? this.#answer(effect) : { kind: 'unanswered' };
        const response: ElectionEvent = lost ? { kind: 'unanswered' } : answer;
        this.#queue.push({ atUs: this.nowUs + delayUs(), act: () => member.up && this.step(member, response) });
      },
    });
  }

  #answer(effect: Extract<ElectionEffect, { kind: 'read' | 'write' }>): ElectionEvent {
    if (effect.kind === 'read')
      return { kind: 'read', stored: this.record && { record: this.record, revision: this.revision } };
    const current = this.record === undefined ? undefined : this.revision;
    if (current !== effect.revision) return { kind: 'written', revision: undefined };
    this.record = effect.record;
    return { kind: 'written', revision: ++this.revision };
  }

  /** The store loses all records. */
  loseRecord(): void {
    this.record = undefined;
    this.revision = 0;
    this.#recordLost = true;
  }

  crash(index: number): void {
    this.members[index].up = false;
    this.members[index] = this.#member(index, this.members[index].incarnation + 1);
  }

  check(): void {
    const leaders = this.members.filter(({ election, skewUs }) => election.epochAt(this.nowUs + skewUs) !== undefined);
    if (leaders.length > 1) throw new Error(`${leaders.length} members are leader`);
    for (let i = 1; i < this.epochs.length; i++)
      if (this.epochs[i] <= this.epochs[i - 1]) throw new Error(`epoch ${this.epochs[i]} after ${this.epochs[i - 1]}`);
  }

  get readByAll(): boolean {
    return this.record !== undefined && this.members.every(({ election }) => election.holder !== undefined);
  }

  holder(): Member | undefined {
    return this.members.find(({ election, skewUs }) => election.epochAt(this.nowUs + skewUs) !== undefined);
  }
}

test('elects one leader soon, and keeps it', () => {
  const world = new World(1, 5, false);
  world.run(2_000_000);
  expect(world.epochs).toEqual([1]);
  world.run(60_000_000);
  expect(world.epochs).toEqual([1]);
});

test('replaces a crashed leader after its lease, and one that resigned at once', () => {
  const world = new World(2, 3, false);
  world.run(2_000_000);
  world.crash(world.members.indexOf(world.holder() ?? world.members[0]));
  world.run(2_000_000 + times.leaseUs + 2 * times.pollUs);
  expect(world.epochs).toEqual([1, 2]);
  const holder = world.holder();
  if (holder === undefined) throw new Error('no leader');
  world.step(holder, { kind: 'resign' });
  world.run(world.nowUs + times.pollUs + 100_000);
  expect(world.epochs).toEqual([1, 2, 3]);
  expect(world.holder()).not.toBe(holder);
});

test('the leader restores a lost record; others write one only after every lease has expired', () => {
  const world = new World(3, 3, false);
  world.run(2_000_000);
  const holder = world.holder();
  world.loseRecord();
  world.run(world.nowUs + 2 * times.pollUs);
  expect(world.holder()).toBe(holder);
  expect(world.epochs).toHaveLength(2);
  // The leader crashes too, and no restarted member has an epoch.
  world.loseRecord();
  for (const index of world.members.keys()) world.crash(index);
  const lostUs = world.nowUs;
  world.run(lostUs + times.leaseUs);
  expect(world.holder()).toBeUndefined();
  world.run(lostUs + times.leaseUs + 2 * times.pollUs);
  expect(world.holder()).toBeDefined();
});

test('a response to a process that was suspended does not count as the present state of the record', () => {
  const election = new Election('a', { recordLost: false, originMs: 0 });
  expect(election.step(0, { kind: 'wake' })).toEqual([{ kind: 'read' }]);
  // Meanwhile another process may have been elected, and its record may have been lost.
  expect(election.step(20_000_000, { kind: 'read', stored: undefined })).toEqual([{ kind: 'read' }]);
  expect(election.step(20_100_000, { kind: 'read', stored: undefined })).toEqual([]);
  expect(election.step(21_000_000, { kind: 'wake' })).toEqual([{ kind: 'read' }]);
  const stored = { record: { holder: 'b', epoch: 1 }, revision: 1 };
  expect(election.step(40_000_000, { kind: 'read', stored })).toEqual([{ kind: 'read' }]);
});

test('has at most one leader at a time and growing epochs under loss, delay and crashes, and one leader in the end', () => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 2 ** 31 }), fc.integer({ min: 1, max: 5 }), (seed, count) => {
      const world = new World(seed, count, true);
      const random = new Prng(seed, 2);
      for (let i = 0; i < 6; i++) {
        world.run(world.nowUs + random.integer(0, 10_000_000));
        world.crash(random.integer(0, count - 1));
        // Every member has read the record since its start.
        if (random.chance(0.3) && world.readByAll) {
          world.loseRecord();
          world.run(world.nowUs + 2 * times.leaseUs);
        }
      }
      world.faulty = false;
      world.run(world.nowUs + 2 * times.leaseUs + 5 * times.pollUs);
      expect(world.holder()).toBeDefined();
    }),
    { numRuns: 60 },
  );
});

test('a member that resigns at any time leaves no record in its name', () => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 2 ** 31 }), fc.integer({ min: 0, max: 1_500_000 }), (seed, atUs) => {
      const world = new World(seed, 3, false);
      world.run(atUs);
      const [leaver] = world.members;
      world.step(leaver, { kind: 'resign' });
      // Pending requests, their responses, and the last write of the member.
      world.run(world.nowUs + 100_000);
      leaver.up = false;
      expect(world.record?.holder).not.toBe('m0.0');
      world.run(world.nowUs + 2 * times.pollUs);
      expect(world.holder()).toBeDefined();
      expect(world.holder()).not.toBe(leaver);
    }),
    { numRuns: 100 },
  );
});
