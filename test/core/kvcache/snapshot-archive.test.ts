// What an instance holds, told by a copy in a store and the journals since: whatever becomes of the store, gateways come to know it.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { KvEventLog } from '../../../src/core/kvcache/events/kv-event-log.ts';
import { PrefixIndex } from '../../../src/core/kvcache/events/prefix-index.ts';
import {
  type ArchiveLimits,
  journalWeight,
  SnapshotArchive,
  tailsMax,
} from '../../../src/core/kvcache/events/snapshot-archive.ts';
import { type CatchUpEvent, SnapshotCatchUp } from '../../../src/core/kvcache/events/snapshot-catch-up.ts';
import type { KvEventBatch, KvSnapshot } from '../../../src/core/protocol/kv-events.ts';

const limits: ArchiveLimits = { changesMin: 40, blocksMax: 100, refreshUs: 1000e6, retryUs: 1e6, retryUsMax: 4e6 };
const times = { readUs: 3e6, askAgainUs: 10e6 };
const names = 40;
const wordsOf = (blocks: Iterable<number>) => Uint32Array.from([...blocks].flatMap((name) => [name + 1, name, 0, 0]));

interface Told {
  readonly journals: readonly KvEventBatch[];
  readonly stored?: number;
  readonly blocks?: KvSnapshot | undefined;
}

interface Read {
  readonly ticket: number;
  readonly number: number;
}

/** Its link is in order and whole: what was said and not heard yet is in queues. */
class Gateway {
  readonly catchUp = new SnapshotCatchUp(times);
  readonly index = new PrefixIndex({ instances: 1, blocks: 4, remembered: 0 });
  readonly inbox: Told[] = [];
  readonly asks: boolean[] = [];
  readonly reads: Read[] = [];

  constructor() {
    this.index.join(0, 1);
  }

  feed(nowUs: number, event: CatchUpEvent): void {
    for (const effect of this.catchUp.step(nowUs, event)) {
      if (effect.kind === 'ask') this.asks.push(effect.unread);
      else if (effect.kind === 'read') this.reads.push(effect);
      else if (effect.kind === 'snapshot') this.index.restore(0, { ...effect.snapshot, incarnation: 1 });
      else if (this.index.apply(0, { ...effect.journal, incarnation: 1 }) === 'gap')
        this.feed(nowUs, { kind: 'wanted', instance: 0 });
    }
  }
}

class World {
  readonly met = { listings: 0, writes: 0, stored: 0, listed: 0, read: 0, unread: 0 };
  readonly gateways: Gateway[] = [];
  readonly blocks = new Set<number>();
  readonly #recorder = new KvEventLog(1);
  readonly #archive = new SnapshotArchive<Gateway>(limits);
  nowUs = 0;
  store: KvSnapshot | undefined;
  writing: KvSnapshot | undefined;
  listing = false;

  join(): void {
    const gateway = new Gateway();
    this.gateways.push(gateway);
    gateway.feed(this.nowUs, { kind: 'wanted', instance: 0 });
  }

  leave(gateway: Gateway): void {
    this.gateways.splice(this.gateways.indexOf(gateway), 1);
    this.#feed({ kind: 'gone', gateway });
  }

  /** A turn of the instance's thread, which tells all if it was asked to and `lists`. */
  turn(changed: readonly number[], lists: boolean): void {
    for (const name of changed) {
      const stored = !this.blocks.delete(name);
      if (stored) this.blocks.add(name);
      this.#recorder.record(wordsOf([name]), 0, stored);
    }
    const { words, stored, ...journal } = this.#recorder.changes > 0 ? this.#recorder.take() : nothing;
    const journals = journal.changes === 0 ? [] : [{ ...journal, words: words.slice(), stored: stored.slice() }];
    const blocks = this.listing && lists ? this.#recorder.snapshot(wordsOf(this.blocks)) : undefined;
    this.listing &&= blocks === undefined;
    const told = this.#feed({ kind: 'heard', journals, blocks });
    for (const gateway of this.gateways)
      gateway.inbox.push({ journals, blocks: told.has(gateway) ? blocks : undefined });
  }

  /** @param how 'doubtful': it was written, but the writer receives no report */
  endWrite(how: 'written' | 'unwritten' | 'doubtful'): void {
    const { writing } = this;
    if (writing === undefined) return;
    this.writing = undefined;
    if (how !== 'unwritten') this.store = writing;
    this.#feed({ kind: how === 'written' ? 'written' : 'unwritten' });
  }

  endRead(gateway: Gateway, readable: boolean): void {
    const read = gateway.reads.shift();
    if (read === undefined) return;
    const found = readable && this.store !== undefined && this.store.number >= read.number ? this.store : undefined;
    this.met[found === undefined ? 'unread' : 'read']++;
    gateway.feed(this.nowUs, { kind: 'read', ticket: read.ticket, snapshot: found });
  }

  hearAsk(gateway: Gateway): void {
    const unread = gateway.asks.shift();
    if (unread !== undefined) this.#feed({ kind: 'asked', gateway, unread });
  }

  hearTold(gateway: Gateway): void {
    const told = gateway.inbox.shift();
    if (told !== undefined) gateway.feed(this.nowUs, { kind: 'told', instance: 0, ...told });
  }

  /** As the instance's report has it. */
  report(gateway: Gateway): void {
    if (gateway.index.isBehind(0, 1, this.#recorder.number)) gateway.feed(this.nowUs, { kind: 'wanted', instance: 0 });
  }

  pass(us: number): void {
    this.nowUs += us;
    this.#feed({ kind: 'wake' });
    for (const gateway of this.gateways) gateway.feed(this.nowUs, { kind: 'wake' });
  }

  /** Delivers every message in transit; gateways that lack blocks request them. */
  rest(): void {
    for (let i = 0; i < 12; i++) {
      this.turn([], true);
      this.endWrite('written');
      for (const gateway of this.gateways) {
        while (gateway.asks.length > 0) this.hearAsk(gateway);
        while (gateway.inbox.length > 0) this.hearTold(gateway);
        while (gateway.reads.length > 0) this.endRead(gateway, true);
        this.report(gateway);
      }
      this.pass(2e6);
    }
  }

  check(): void {
    const weight = this.#archive.tail.reduce((sum, { changes }) => sum + changes + journalWeight, 0);
    expect(weight).toBeLessThanOrEqual(tailsMax * Math.max(limits.changesMin, names));
    for (const { index } of this.gateways) {
      expect(index.held(0)).toBe(this.blocks.size);
      for (const name of this.blocks) expect(index.holds(0, wordsOf([name]), 0)).toBe(true);
    }
  }

  #feed(event: Parameters<SnapshotArchive<Gateway>['step']>[1]): ReadonlySet<Gateway> {
    const told = new Set<Gateway>();
    for (const effect of this.#archive.step(this.nowUs, event)) {
      if (effect.kind === 'requestSnapshot') told.add(effect.gateway);
      if (effect.kind === 'tellStored') effect.gateway.inbox.push({ journals: effect.journals, stored: effect.number });
      if (effect.kind === 'list') {
        // One at a time.
        expect(this.listing).toBe(false);
        this.listing = true;
        this.met.listings++;
      }
      if (effect.kind === 'write') {
        expect(this.writing).toBeUndefined();
        this.writing = effect.snapshot;
        this.met.writes++;
      }
      this.met.stored += Number(effect.kind === 'tellStored');
      this.met.listed += Number(effect.kind === 'requestSnapshot');
    }
    return told;
  }
}

const nothing = { incarnation: 1, number: 0, changes: 0, words: new Uint32Array(), stored: new Uint8Array() };
const often = ['change', 'change', 'list', 'told', 'told', 'ask', 'read', 'written'] as const;
const action = fc.record({
  what: fc.constantFrom(
    ...often,
    ...(['join', 'leave', 'report', 'unread', 'unread', 'unwritten', 'doubtful', 'lost', 'lost', 'pass'] as const),
  ),
  blocks: fc.array(fc.nat(names - 1), { minLength: 1, maxLength: 20 }),
  which: fc.nat(9),
});

test('gateways know what an instance holds, whenever they come, and whatever is lost, late or not written', () => {
  const met = { listings: 0, writes: 0, stored: 0, listed: 0, read: 0, unread: 0 };
  fc.assert(
    fc.property(fc.array(action, { minLength: 20, maxLength: 120 }), (actions) => {
      const world = new World();
      world.join();
      for (const { what, blocks, which } of actions) {
        const gateway = world.gateways[which % world.gateways.length];
        if (what === 'change') world.turn(blocks, false);
        else if (what === 'list') world.turn([], true);
        else if (what === 'written' || what === 'unwritten' || what === 'doubtful') world.endWrite(what);
        else if (what === 'lost') world.store = undefined;
        else if (what === 'pass') world.pass(which * 1e6);
        else if (what === 'join') world.join();
        else if (gateway === undefined) continue;
        else if (what === 'leave') world.leave(gateway);
        else if (what === 'told') world.hearTold(gateway);
        else if (what === 'ask') world.hearAsk(gateway);
        else if (what === 'report') world.report(gateway);
        else world.endRead(gateway, what === 'read');
      }
      world.rest();
      world.join();
      world.rest();
      world.check();
      for (const key of Object.keys(met) as (keyof typeof met)[]) met[key] += world.met[key];
    }),
    { numRuns: 300 },
  );
  for (const count of Object.values(met)) expect(count).toBeGreaterThan(5);
});

test('however many come, the instance lists once, and again when as much has changed as it holds', () => {
  const world = new World();
  const all = Array.from({ length: names }, (_, name) => name);
  world.turn(all.slice(0, 20), false);
  for (let i = 0; i < 10; i++) world.join();
  world.rest();
  expect(world.met).toMatchObject({ listings: 1, writes: 1, listed: 10, stored: 0 });
  for (let i = 0; i < 10; i++) world.join();
  world.turn([1, 2, 3], false);
  world.rest();
  world.check();
  expect(world.met).toMatchObject({ listings: 1, stored: 10, read: 10 });
  world.turn(all, false);
  world.rest();
  world.check();
  expect(world.met).toMatchObject({ listings: 2, writes: 2, listed: 10 });
});

test('a copy that is not there is told over the link, and written again', () => {
  const world = new World();
  world.join();
  world.rest();
  world.store = undefined;
  world.join();
  world.rest();
  world.check();
  expect(world.met).toMatchObject({ listings: 2, writes: 2, unread: 1, listed: 2 });
  expect(world.store).toBeDefined();
});

test('failed writes are retried with growing delays, old snapshots are rewritten, and a replaced writer stops', () => {
  const archive = new SnapshotArchive<string>(limits);
  const blocks = { incarnation: 1, number: 0, blocks: 0, words: new Uint32Array() };
  const heard = { kind: 'heard', journals: [], blocks } as const;
  const kinds = (nowUs: number, event: Parameters<typeof archive.step>[1]) =>
    archive.step(nowUs, event).map(({ kind }) => kind);
  expect(kinds(0, { kind: 'asked', gateway: 'g', unread: false })).toEqual(['list']);
  expect(kinds(0, { kind: 'asked', gateway: 'h', unread: false })).toEqual([]);
  expect(kinds(0, { kind: 'gone', gateway: 'h' })).toEqual([]);
  expect(kinds(0, heard)).toEqual(['requestSnapshot', 'write']);
  expect(kinds(0, { kind: 'unwritten' })).toEqual([]);
  for (const [atUs, waitsUs] of [
    [0, 1e6],
    [1e6, 2e6],
    [3e6, 4e6],
    [7e6, 4e6],
  ] as const) {
    if (atUs > 0) archive.step(atUs, { kind: 'unwritten' });
    expect(archive.nextUs).toBe(atUs + waitsUs);
    expect(kinds(atUs + waitsUs - 1, { kind: 'asked', gateway: 'g', unread: false })).toEqual(['list']);
    expect(kinds(atUs + waitsUs - 1, heard)).toEqual(['requestSnapshot']);
    expect(kinds(atUs + waitsUs, { kind: 'asked', gateway: 'g', unread: false })).toEqual(['list']);
    expect(kinds(atUs + waitsUs, heard)).toEqual(['requestSnapshot', 'write']);
  }
  expect(archive.nextUs).toBe(Number.POSITIVE_INFINITY);
  archive.step(12e6, { kind: 'written' });
  expect(archive.nextUs).toBe(1012e6);
  expect(kinds(1012e6, { kind: 'wake' })).toEqual(['list']);
  expect(kinds(1012e6, heard)).toEqual(['write']);
  archive.step(1012e6, { kind: 'replaced' });
  expect(kinds(1020e6, { kind: 'asked', gateway: 'g', unread: false })).toEqual(['list']);
  expect(kinds(1020e6, heard)).toEqual(['requestSnapshot']);
  expect(archive.nextUs).toBe(Number.POSITIVE_INFINITY);
});

test('one copy is read at a time, and not for ever', () => {
  const catchUp = new SnapshotCatchUp(times);
  const feed = (nowUs: number, event: CatchUpEvent) => catchUp.step(nowUs, event);
  const journal = (number: number): KvEventBatch => ({ ...nothing, number });
  for (const instance of [0, 1]) {
    const unread = false;
    expect(feed(0, { kind: 'wanted', instance })).toEqual([{ kind: 'ask', instance, unread }]);
    expect(feed(1, { kind: 'wanted', instance })).toEqual([]);
  }
  const [first] = feed(1, { kind: 'told', instance: 1, stored: 4, journals: [journal(5)] });
  expect(first).toEqual({ kind: 'read', instance: 1, ticket: 1, number: 4 });
  expect(feed(1, { kind: 'told', instance: 0, stored: 2, journals: [] })).toEqual([]);
  // What comes meanwhile is kept.
  expect(feed(2, { kind: 'told', instance: 1, journals: [journal(6)] })).toEqual([]);
  expect(catchUp.nextUs).toBe(1 + times.readUs);
  expect(feed(catchUp.nextUs, { kind: 'wake' })).toEqual([
    { kind: 'journal', instance: 1, journal: journal(5) },
    { kind: 'journal', instance: 1, journal: journal(6) },
    { kind: 'ask', instance: 1, unread: true },
    { kind: 'read', instance: 0, ticket: 2, number: 2 },
  ]);
  // A late answer without a reader; then one with an older snapshot than announced.
  const late = { incarnation: 1, number: 9, blocks: 0, words: new Uint32Array() };
  expect(feed(4e6, { kind: 'read', ticket: 1, snapshot: late })).toEqual([]);
  expect(feed(4e6, { kind: 'read', ticket: 2, snapshot: { ...late, number: 1 } })).toEqual([
    { kind: 'ask', instance: 0, unread: true },
  ]);
  expect(feed(5e6, { kind: 'gone', instance: 0 })).toEqual([]);
  expect(feed(5e6, { kind: 'wanted', instance: 0 })).toEqual([{ kind: 'ask', instance: 0, unread: false }]);
  // An instance that does not answer receives another request.
  expect(feed(15e6, { kind: 'wanted', instance: 1 })).toEqual([{ kind: 'ask', instance: 1, unread: false }]);
});

test('a snapshot too large for the store is refused once, and tried again after as many changes as blocks, or on request', () => {
  const archive = new SnapshotArchive<string>(limits);
  const kinds = (nowUs: number, event: Parameters<typeof archive.step>[1]) =>
    archive.step(nowUs, event).map(({ kind }) => kind);
  let number = 0;
  const journal = (changes: number) => ({ ...nothing, number: ++number, changes: changes - journalWeight });
  const heard = (changes: number) => ({ kind: 'heard', journals: [journal(changes)], blocks: undefined }) as const;
  const listed = (blocks: number) =>
    ({ kind: 'heard', journals: [], blocks: { incarnation: 1, number, blocks, words: new Uint32Array() } }) as const;
  const asked = { kind: 'asked', gateway: 'g', unread: false } as const;
  expect(kinds(0, asked)).toEqual(['list']);
  expect(kinds(0, listed(100))).toEqual(['requestSnapshot', 'write']);
  archive.step(0, { kind: 'written' });
  expect(kinds(1e6, heard(101))).toEqual(['list']);
  expect(archive.step(1e6, listed(101))).toEqual([{ kind: 'refused', blocks: 101 }]);
  // No time brings it back: not that of the copy before, either.
  expect(archive.nextUs).toBe(Number.POSITIVE_INFINITY);
  expect(kinds(2000e6, { kind: 'wake' })).toEqual([]);
  expect(kinds(2000e6, heard(101))).toEqual([]);
  expect(archive.tail).toEqual([]);
  expect(kinds(2000e6, heard(9))).toEqual(['list']);
  expect(kinds(2000e6, listed(120))).toEqual([]);
  expect(kinds(2000e6, asked)).toEqual(['list']);
  expect(kinds(2000e6, listed(110))).toEqual(['requestSnapshot']);
  expect(kinds(2000e6, asked)).toEqual(['list']);
  expect(kinds(2000e6, listed(99))).toEqual(['requestSnapshot', 'write']);
  archive.step(2000e6, { kind: 'written' });
  expect(kinds(2000e6, asked)).toEqual(['tellStored']);
  expect(kinds(2000e6, heard(101))).toEqual(['list']);
  expect(kinds(2000e6, listed(101))).toEqual(['refused']);
  // A write that failed before is not tried again for it.
  expect(kinds(2000e6, asked)).toEqual(['list']);
  expect(kinds(2000e6, listed(99))).toEqual(['requestSnapshot', 'write']);
  expect(kinds(2000e6, { kind: 'unwritten' })).toEqual([]);
  expect(kinds(2001e6, { kind: 'wake' })).toEqual(['list']);
  expect(kinds(2001e6, listed(101))).toEqual(['refused']);
  expect(archive.nextUs).toBe(Number.POSITIVE_INFINITY);
});
