// Stored snapshots of an instance's cache: gateways reconstruct its blocks, whatever the store loses.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { KvEventLog } from '../../../src/core/kvcache/events/kv-event-log.ts';
import { PrefixIndex } from '../../../src/core/kvcache/events/prefix-index.ts';
import {
  type ArchiveLimits,
  batchWeight,
  SnapshotArchive,
  tailFactorMax,
} from '../../../src/core/kvcache/events/snapshot-archive.ts';
import { type CatchUpEvent, SnapshotCatchUp } from '../../../src/core/kvcache/events/snapshot-catch-up.ts';
import type { KvEventBatch, KvSnapshot } from '../../../src/core/protocol/kv-events.ts';

const limits: ArchiveLimits = { changesMin: 40, blocksMax: 100, refreshUs: 1000e6, retryUs: 1e6, retryUsMax: 4e6 };
const times = { readUs: 3e6, requestAgainUs: 10e6 };
const names = 40;
const wordsOf = (blocks: Iterable<number>) => Uint32Array.from([...blocks].flatMap((name) => [name + 1, name, 0, 0]));

/** A message of the instance to a gateway. */
interface Message {
  readonly batches: readonly KvEventBatch[];
  readonly storedNumber?: number;
  readonly snapshot?: KvSnapshot | undefined;
}

interface Read {
  readonly readNumber: number;
  readonly number: number;
}

/** Its channel delivers everything in order: messages in transit are in queues. */
class Gateway {
  readonly catchUp = new SnapshotCatchUp(times);
  readonly index = new PrefixIndex({ instances: 1, blocks: 4, remembered: 0 });
  readonly inbox: Message[] = [];
  readonly requests: boolean[] = [];
  readonly reads: Read[] = [];

  constructor() {
    this.index.instanceJoined(0, 1);
  }

  feed(nowUs: number, event: CatchUpEvent): void {
    for (const effect of this.catchUp.step(nowUs, event)) {
      if (effect.kind === 'requestSnapshot') this.requests.push(effect.unreadable);
      else if (effect.kind === 'read') this.reads.push(effect);
      else if (effect.kind === 'snapshot') this.index.restore(0, { ...effect.snapshot, incarnation: 1 });
      else if (this.index.apply(0, { ...effect.batch, incarnation: 1 }) === 'gap')
        this.feed(nowUs, { kind: 'behind', instance: 0 });
    }
  }
}

class World {
  readonly met = { snapshots: 0, writes: 0, storedSent: 0, snapshotsSent: 0, read: 0, unreadable: 0 };
  readonly gateways: Gateway[] = [];
  readonly blocks = new Set<number>();
  readonly #log = new KvEventLog(1);
  readonly #archive = new SnapshotArchive<Gateway>(limits);
  nowUs = 0;
  store: KvSnapshot | undefined;
  writing: KvSnapshot | undefined;
  takingSnapshot = false;

  join(): void {
    const gateway = new Gateway();
    this.gateways.push(gateway);
    gateway.feed(this.nowUs, { kind: 'behind', instance: 0 });
  }

  leave(gateway: Gateway): void {
    this.gateways.splice(this.gateways.indexOf(gateway), 1);
    this.#feed({ kind: 'gatewayLeft', gateway });
  }

  /** The instance's thread sends its changes, and a requested snapshot if it `takesSnapshot`. */
  publish(changed: readonly number[], takesSnapshot: boolean): void {
    for (const name of changed) {
      const stored = !this.blocks.delete(name);
      if (stored) this.blocks.add(name);
      this.#log.record(wordsOf([name]), 0, stored);
    }
    const { words, stored, ...batch } = this.#log.changes > 0 ? this.#log.take() : nothing;
    const batches = batch.changes === 0 ? [] : [{ ...batch, words: words.slice(), stored: stored.slice() }];
    const snapshot = this.takingSnapshot && takesSnapshot ? this.#log.snapshot(wordsOf(this.blocks)) : undefined;
    this.takingSnapshot &&= snapshot === undefined;
    const receivers = this.#feed({ kind: 'published', batches, snapshot });
    for (const gateway of this.gateways)
      gateway.inbox.push({ batches, snapshot: receivers.has(gateway) ? snapshot : undefined });
  }

  /** @param how 'unconfirmed': it was written, but the response is lost */
  endWrite(how: 'written' | 'writeFailed' | 'unconfirmed'): void {
    const { writing } = this;
    if (writing === undefined) return;
    this.writing = undefined;
    if (how !== 'writeFailed') this.store = writing;
    this.#feed({ kind: how === 'written' ? 'written' : 'writeFailed' });
  }

  endRead(gateway: Gateway, readable: boolean): void {
    const read = gateway.reads.shift();
    if (read === undefined) return;
    const found = readable && this.store !== undefined && this.store.number >= read.number ? this.store : undefined;
    this.met[found === undefined ? 'unreadable' : 'read']++;
    gateway.feed(this.nowUs, { kind: 'read', readNumber: read.readNumber, snapshot: found });
  }

  deliverRequest(gateway: Gateway): void {
    const unreadable = gateway.requests.shift();
    if (unreadable !== undefined) this.#feed({ kind: 'requested', gateway, unreadable });
  }

  deliverMessage(gateway: Gateway): void {
    const message = gateway.inbox.shift();
    if (message !== undefined) gateway.feed(this.nowUs, { kind: 'received', instance: 0, ...message });
  }

  /** The gateway receives a heartbeat with the number of the last batch. */
  report(gateway: Gateway): void {
    if (gateway.index.isBehind(0, 1, this.#log.number)) gateway.feed(this.nowUs, { kind: 'behind', instance: 0 });
  }

  pass(us: number): void {
    this.nowUs += us;
    this.#feed({ kind: 'wake' });
    for (const gateway of this.gateways) gateway.feed(this.nowUs, { kind: 'wake' });
  }

  /** Delivers every message in transit; gateways that lack blocks request them. */
  settle(): void {
    for (let i = 0; i < 12; i++) {
      this.publish([], true);
      this.endWrite('written');
      for (const gateway of this.gateways) {
        while (gateway.requests.length > 0) this.deliverRequest(gateway);
        while (gateway.inbox.length > 0) this.deliverMessage(gateway);
        while (gateway.reads.length > 0) this.endRead(gateway, true);
        this.report(gateway);
      }
      this.pass(2e6);
    }
  }

  check(): void {
    const weight = this.#archive.tail.reduce((sum, { changes }) => sum + changes + batchWeight, 0);
    expect(weight).toBeLessThanOrEqual(tailFactorMax * Math.max(limits.changesMin, names));
    for (const { index } of this.gateways) {
      expect(index.blocksOf(0)).toBe(this.blocks.size);
      for (const name of this.blocks) expect(index.holds(0, wordsOf([name]), 0)).toBe(true);
    }
  }

  #feed(event: Parameters<SnapshotArchive<Gateway>['step']>[1]): ReadonlySet<Gateway> {
    const receivers = new Set<Gateway>();
    for (const effect of this.#archive.step(this.nowUs, event)) {
      if (effect.kind === 'sendSnapshot') receivers.add(effect.gateway);
      if (effect.kind === 'sendStored')
        effect.gateway.inbox.push({ batches: effect.batches, storedNumber: effect.number });
      if (effect.kind === 'takeSnapshot') {
        // One at a time.
        expect(this.takingSnapshot).toBe(false);
        this.takingSnapshot = true;
        this.met.snapshots++;
      }
      if (effect.kind === 'write') {
        expect(this.writing).toBeUndefined();
        this.writing = effect.snapshot;
        this.met.writes++;
      }
      this.met.storedSent += Number(effect.kind === 'sendStored');
      this.met.snapshotsSent += Number(effect.kind === 'sendSnapshot');
    }
    return receivers;
  }
}

const nothing = { incarnation: 1, number: 0, changes: 0, words: new Uint32Array(), stored: new Uint8Array() };
const often = ['change', 'change', 'snapshot', 'message', 'message', 'request', 'read', 'written'] as const;
const action = fc.record({
  what: fc.constantFrom(
    ...often,
    ...([
      'join',
      'leave',
      'report',
      'unreadable',
      'unreadable',
      'writeFailed',
      'unconfirmed',
      'lost',
      'lost',
      'pass',
    ] as const),
  ),
  blocks: fc.array(fc.nat(names - 1), { minLength: 1, maxLength: 20 }),
  which: fc.nat(9),
});

test('the index of each gateway equals the cache, whenever it joins, and whatever is lost, late or not written', () => {
  const met = { snapshots: 0, writes: 0, storedSent: 0, snapshotsSent: 0, read: 0, unreadable: 0 };
  fc.assert(
    fc.property(fc.array(action, { minLength: 20, maxLength: 120 }), (actions) => {
      const world = new World();
      world.join();
      for (const { what, blocks, which } of actions) {
        const gateway = world.gateways[which % world.gateways.length];
        if (what === 'change') world.publish(blocks, false);
        else if (what === 'snapshot') world.publish([], true);
        else if (what === 'written' || what === 'writeFailed' || what === 'unconfirmed') world.endWrite(what);
        else if (what === 'lost') world.store = undefined;
        else if (what === 'pass') world.pass(which * 1e6);
        else if (what === 'join') world.join();
        else if (gateway === undefined) continue;
        else if (what === 'leave') world.leave(gateway);
        else if (what === 'message') world.deliverMessage(gateway);
        else if (what === 'request') world.deliverRequest(gateway);
        else if (what === 'report') world.report(gateway);
        else world.endRead(gateway, what === 'read');
      }
      world.settle();
      world.join();
      world.settle();
      world.check();
      for (const key of Object.keys(met) as (keyof typeof met)[]) met[key] += world.met[key];
    }),
    { numRuns: 300 },
  );
  for (const count of Object.values(met)) expect(count).toBeGreaterThan(5);
});

test('one snapshot serves many gateways, and the next follows after as many changes as blocks', () => {
  const world = new World();
  const all = Array.from({ length: names }, (_, name) => name);
  world.publish(all.slice(0, 20), false);
  for (let i = 0; i < 10; i++) world.join();
  world.settle();
  expect(world.met).toMatchObject({ snapshots: 1, writes: 1, snapshotsSent: 10, storedSent: 0 });
  for (let i = 0; i < 10; i++) world.join();
  world.publish([1, 2, 3], false);
  world.settle();
  world.check();
  expect(world.met).toMatchObject({ snapshots: 1, storedSent: 10, read: 10 });
  world.publish(all, false);
  world.settle();
  world.check();
  expect(world.met).toMatchObject({ snapshots: 2, writes: 2, snapshotsSent: 10 });
});

test('a lost snapshot is sent over the channel, and written again', () => {
  const world = new World();
  world.join();
  world.settle();
  world.store = undefined;
  world.join();
  world.settle();
  world.check();
  expect(world.met).toMatchObject({ snapshots: 2, writes: 2, unreadable: 1, snapshotsSent: 2 });
  expect(world.store).toBeDefined();
});

test('failed writes are retried with growing delays, old snapshots are rewritten, and a replaced writer stops', () => {
  const archive = new SnapshotArchive<string>(limits);
  const snapshot = { incarnation: 1, number: 0, blocks: 0, words: new Uint32Array() };
  const published = { kind: 'published', batches: [], snapshot } as const;
  const kinds = (nowUs: number, event: Parameters<typeof archive.step>[1]) =>
    archive.step(nowUs, event).map(({ kind }) => kind);
  expect(kinds(0, { kind: 'requested', gateway: 'g', unreadable: false })).toEqual(['takeSnapshot']);
  expect(kinds(0, { kind: 'requested', gateway: 'h', unreadable: false })).toEqual([]);
  expect(kinds(0, { kind: 'gatewayLeft', gateway: 'h' })).toEqual([]);
  expect(kinds(0, published)).toEqual(['sendSnapshot', 'write']);
  expect(kinds(0, { kind: 'writeFailed' })).toEqual([]);
  for (const [atUs, delayUs] of [
    [0, 1e6],
    [1e6, 2e6],
    [3e6, 4e6],
    [7e6, 4e6],
  ] as const) {
    if (atUs > 0) archive.step(atUs, { kind: 'writeFailed' });
    expect(archive.nextUs).toBe(atUs + delayUs);
    expect(kinds(atUs + delayUs - 1, { kind: 'requested', gateway: 'g', unreadable: false })).toEqual(['takeSnapshot']);
    expect(kinds(atUs + delayUs - 1, published)).toEqual(['sendSnapshot']);
    expect(kinds(atUs + delayUs, { kind: 'requested', gateway: 'g', unreadable: false })).toEqual(['takeSnapshot']);
    expect(kinds(atUs + delayUs, published)).toEqual(['sendSnapshot', 'write']);
  }
  expect(archive.nextUs).toBe(Number.POSITIVE_INFINITY);
  archive.step(12e6, { kind: 'written' });
  expect(archive.nextUs).toBe(1012e6);
  expect(kinds(1012e6, { kind: 'wake' })).toEqual(['takeSnapshot']);
  expect(kinds(1012e6, published)).toEqual(['write']);
  archive.step(1012e6, { kind: 'replaced' });
  expect(kinds(1020e6, { kind: 'requested', gateway: 'g', unreadable: false })).toEqual(['takeSnapshot']);
  expect(kinds(1020e6, published)).toEqual(['sendSnapshot']);
  expect(archive.nextUs).toBe(Number.POSITIVE_INFINITY);
});

test('one stored snapshot is read at a time, with a timeout', () => {
  const catchUp = new SnapshotCatchUp(times);
  const feed = (nowUs: number, event: CatchUpEvent) => catchUp.step(nowUs, event);
  const batch = (number: number): KvEventBatch => ({ ...nothing, number });
  for (const instance of [0, 1]) {
    expect(feed(0, { kind: 'behind', instance })).toEqual([{ kind: 'requestSnapshot', instance, unreadable: false }]);
    expect(feed(1, { kind: 'behind', instance })).toEqual([]);
  }
  const [first] = feed(1, { kind: 'received', instance: 1, storedNumber: 4, batches: [batch(5)] });
  expect(first).toEqual({ kind: 'read', instance: 1, readNumber: 1, number: 4 });
  expect(feed(1, { kind: 'received', instance: 0, storedNumber: 2, batches: [] })).toEqual([]);
  // Batches received meanwhile are kept.
  expect(feed(2, { kind: 'received', instance: 1, batches: [batch(6)] })).toEqual([]);
  expect(catchUp.nextUs).toBe(1 + times.readUs);
  expect(feed(catchUp.nextUs, { kind: 'wake' })).toEqual([
    { kind: 'kvEvents', instance: 1, batch: batch(5) },
    { kind: 'kvEvents', instance: 1, batch: batch(6) },
    { kind: 'requestSnapshot', instance: 1, unreadable: true },
    { kind: 'read', instance: 0, readNumber: 2, number: 2 },
  ]);
  // The end of a read that has timed out, then a snapshot older than announced.
  const late = { incarnation: 1, number: 9, blocks: 0, words: new Uint32Array() };
  expect(feed(4e6, { kind: 'read', readNumber: 1, snapshot: late })).toEqual([]);
  expect(feed(4e6, { kind: 'read', readNumber: 2, snapshot: { ...late, number: 1 } })).toEqual([
    { kind: 'requestSnapshot', instance: 0, unreadable: true },
  ]);
  expect(feed(5e6, { kind: 'instanceLeft', instance: 0 })).toEqual([]);
  expect(feed(5e6, { kind: 'behind', instance: 0 })).toEqual([
    { kind: 'requestSnapshot', instance: 0, unreadable: false },
  ]);
  // An instance that does not answer receives another request.
  expect(feed(15e6, { kind: 'behind', instance: 1 })).toEqual([
    { kind: 'requestSnapshot', instance: 1, unreadable: false },
  ]);
});

test('a snapshot too large for the store is refused once, and tried again after as many changes as blocks, or on request', () => {
  const archive = new SnapshotArchive<string>(limits);
  const kinds = (nowUs: number, event: Parameters<typeof archive.step>[1]) =>
    archive.step(nowUs, event).map(({ kind }) => kind);
  let number = 0;
  const batch = (changes: number) => ({ ...nothing, number: ++number, changes: changes - batchWeight });
  const changed = (changes: number) => ({ kind: 'published', batches: [batch(changes)], snapshot: undefined }) as const;
  const taken = (blocks: number) =>
    ({
      kind: 'published',
      batches: [],
      snapshot: { incarnation: 1, number, blocks, words: new Uint32Array() },
    }) as const;
  const requested = { kind: 'requested', gateway: 'g', unreadable: false } as const;
  expect(kinds(0, requested)).toEqual(['takeSnapshot']);
  expect(kinds(0, taken(100))).toEqual(['sendSnapshot', 'write']);
  archive.step(0, { kind: 'written' });
  expect(kinds(1e6, changed(101))).toEqual(['takeSnapshot']);
  expect(archive.step(1e6, taken(101))).toEqual([{ kind: 'tooLarge', blocks: 101 }]);
  // No time makes it due again, and the time of the snapshot before does not either.
  expect(archive.nextUs).toBe(Number.POSITIVE_INFINITY);
  expect(kinds(2000e6, { kind: 'wake' })).toEqual([]);
  expect(kinds(2000e6, changed(101))).toEqual([]);
  expect(archive.tail).toEqual([]);
  expect(kinds(2000e6, changed(9))).toEqual(['takeSnapshot']);
  expect(kinds(2000e6, taken(120))).toEqual([]);
  expect(kinds(2000e6, requested)).toEqual(['takeSnapshot']);
  expect(kinds(2000e6, taken(110))).toEqual(['sendSnapshot']);
  expect(kinds(2000e6, requested)).toEqual(['takeSnapshot']);
  expect(kinds(2000e6, taken(99))).toEqual(['sendSnapshot', 'write']);
  archive.step(2000e6, { kind: 'written' });
  expect(kinds(2000e6, requested)).toEqual(['sendStored']);
  expect(kinds(2000e6, changed(101))).toEqual(['takeSnapshot']);
  expect(kinds(2000e6, taken(101))).toEqual(['tooLarge']);
  // A failed write is not retried once a snapshot is too large.
  expect(kinds(2000e6, requested)).toEqual(['takeSnapshot']);
  expect(kinds(2000e6, taken(99))).toEqual(['sendSnapshot', 'write']);
  expect(kinds(2000e6, { kind: 'writeFailed' })).toEqual([]);
  expect(kinds(2001e6, { kind: 'wake' })).toEqual(['takeSnapshot']);
  expect(kinds(2001e6, taken(101))).toEqual(['tooLarge']);
  expect(archive.nextUs).toBe(Number.POSITIVE_INFINITY);
});
