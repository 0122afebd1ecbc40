// Activations between members of a group: complete, each once, in any order of events, and without buffers kept for
// cancelled chunks, failed chunks or lost members.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { ActivationMemory, ActivationWire } from '../../../src/runtime/pipeline/activation-memory.ts';
import { ActivationTransfer } from '../../../src/runtime/pipeline/activation-transfer.ts';
import type { Messenger } from '../../../src/runtime/transfer/messenger.ts';

const columns = 3;
const pageValues = 8;
const chunkPages = 4;
const [roomsOut, roomsIn] = [2, 4];

interface Landing {
  readonly pool: Float32Array;
  readonly pages: Int32Array;
  readonly done: string[];
}

interface Parcels {
  readonly receiveBuffer: string;
  readonly step: number;
  readonly parcels: Int32Array;
}

/** A member with pages of its own; what its steps leave is copied as soon as they have. */
class End {
  readonly rows: ActivationTransfer;
  readonly told: ActivationWire[] = [];
  /** Chunks that it has heard of, by their first tokens. */
  readonly heard: number[] = [];
  readonly #pool = new Float32Array((roomsOut + roomsIn) * chunkPages * pageValues);
  readonly #landings: Map<string, Landing>;
  /** How often there was room again. */
  woken = 0;
  #ran = 0;
  #lost: string[] = [];
  /** No member is reachable: ready chunks wait. */
  cut = false;
  #unsent: Parcels[] = [];

  constructor(name: string, landings: Map<string, Landing>) {
    this.#landings = landings;
    const done: string[] = [];
    let count = 0;
    const messenger: Messenger = {
      counts: { pages: 0, bytes: 0, earlyBytes: 0, streams: 0, firstPages: 0, copySeconds: 0, faults: 0 },
      nextStep: 0,
      open: (pages) => {
        const handle = `${name}${++count}`;
        landings.set(handle, { pool: this.#pool, pages, done });
        return handle;
      },
      arrivals: (handle) => Number(handle.slice(1)),
      close: (handle) => void landings.delete(handle),
      received: () => done.splice(0),
      unreachable: () => this.#lost.splice(0),
      send: (receiveBuffer, step, parcels) => {
        this.#unsent.push({ receiveBuffer, step, parcels });
        this.#carry();
      },
      stop: (receiveBuffer) => {
        this.#unsent = this.#unsent.filter((each) => each.receiveBuffer !== receiveBuffer);
      },
      pending: (receiveBuffer) => this.#unsent.filter((each) => each.receiveBuffer === receiveBuffer).length,
      transportTo: () => 'thread',
    };
    Object.defineProperty(messenger, 'nextStep', { get: () => this.#ran + 1 });
    const memory: ActivationMemory = {
      ...{ pool: 1, sendBuffers: roomsOut, receiveBuffers: roomsIn, chunkPages, pageValues, rowValues: columns },
      write: (pages, rows) => this.#leave(pages, rows),
    };
    this.rows = new ActivationTransfer(memory, messenger, (_, wire) => this.told.push(wire));
  }

  #leave(pages: Int32Array, rows: Float32Array): void {
    for (let i = 0; i * pageValues < rows.length; i++)
      this.#pool.set(rows.subarray(i * pageValues, (i + 1) * pageValues), pages[i] * pageValues);
  }

  /** For too long: all that waits is dropped. */
  giveUp(): void {
    this.#lost.push(...this.#unsent.map(({ receiveBuffer }) => receiveBuffer));
    this.#unsent = [];
  }

  /** What is ready and goes somewhere. */
  #carry(): void {
    if (this.cut) return;
    for (const { receiveBuffer, parcels } of this.#unsent.filter(({ step }) => step <= this.#ran)) {
      const to = this.#landings.get(receiveBuffer);
      for (let i = 0; i < parcels.length; i += 3) {
        const from = parcels[i + 1] * pageValues;
        to?.pool.set(this.#pool.subarray(from, from + pageValues), to.pages[parcels[i + 2]] * pageValues);
      }
      to?.done.push(receiveBuffer);
    }
    this.#unsent = this.#unsent.filter(({ step }) => step > this.#ran);
  }

  /** A step that leaves rows for the other one. */
  compute(id: string, chunk: Chunk, made: Float32Array | undefined): void {
    const pages = this.rows.begin(2, id, chunk)?.pages;
    if (made !== undefined && pages !== undefined) {
      this.#leave(pages, made);
      this.#ran++;
      this.#carry();
    }
    this.rows.ended(2, id, chunk, made && (() => made));
  }

  /** What a step would begin with. */
  use(id: string, chunk: Chunk): Float32Array {
    const { pages } = this.rows.rowsOf(id, chunk);
    const all = Float32Array.from(
      [...pages].flatMap((page) => [...this.#pool.subarray(page * pageValues, (page + 1) * pageValues)]),
    );
    this.rows.used(id, chunk);
    return all.subarray(0, (chunk.tokens - chunk.from) * columns);
  }

  look(): void {
    for (const event of this.rows.poll(0)) {
      if (event.kind === 'activations') this.heard.push(event.from);
      if (event.kind === 'wake') this.woken++;
    }
  }
}

interface Chunk {
  readonly from: number;
  readonly tokens: number;
  readonly cachedTokens: number;
}

const chunkAt = (i: number): Chunk => ({ from: 10 * i, tokens: 10 * i + 1 + ((7 * i) % 10), cachedTokens: 0 });
const made = (seed: number, { from, tokens }: Chunk) =>
  Float32Array.from({ length: (tokens - from) * columns }, (_, i) => seed + from + i / 7);

function pair(): readonly [End, End] {
  const landings = new Map<string, Landing>();
  return [new End('a', landings), new End('b', landings)];
}

/** Each hears what the other has told so far; what comes back comes twice. */
function tell([a, b]: readonly [End, End]): boolean {
  const [fromA, fromB] = [a.told.splice(0), b.told.splice(0)];
  for (const wire of fromA) b.rows.onMessage(1, wire);
  for (const wire of fromB) for (let i = 0; i < 2; i++) a.rows.onMessage(2, wire);
  for (const end of [a, b]) end.look();
  return fromA.length + fromB.length > 0;
}

const underWay = (ends: readonly [End, End]) => ends.map(({ rows }) => rows.inFlight);
const none = () => false;

describe('rows between members', () => {
  it('leave with the step that makes them where the next member has told where to', () => {
    const ends = pair();
    ends[1].rows.expect('r', 1);
    tell(ends);
    ends[0].compute('r', chunkAt(3), made(1, chunkAt(3)));
    ends[0].look();
    // Nothing of it is told yet, and all of it is there.
    expect(ends[0].rows.inFlight).toBe(0);
    while (tell(ends));
    expect(ends[1].heard).toEqual([30]);
    expect(ends[1].use('r', chunkAt(3))).toEqual(made(1, chunkAt(3)));
    expect(underWay(ends)).toEqual([0, 0]);
  });

  it('come whole and in order, of more chunks than there is room for, whatever comes to nothing meanwhile', () => {
    type Turn = 'compute' | 'fail' | 'tell' | 'use';
    const turn = fc.constantFrom<Turn>('compute', 'fail', 'tell', 'use');
    const often = (count: number): Turn[] => Array.from({ length: count }, () => 'compute');
    // All rooms with those that had nowhere to go, all landings for those that had no room.
    const stuck: [Turn[], boolean] = [[...often(4), 'tell', ...often(2), 'tell', ...often(4)], true];
    fc.assert(
      fc.property(fc.array(turn, { maxLength: 60 }), fc.boolean(), (turns, early) => {
        const ends = pair();
        const ids = ['r', 's'];
        if (early) for (const id of ids) ends[1].rows.expect(id, 1);
        const computed = [0, 0];
        const used = [0, 0];
        const use = () => {
          if (ends[1].heard.length === 0) return;
          const [from] = ends[1].heard.splice(0, 1);
          const chunk = chunkAt(from / 10);
          // Chunks of both are told apart by their places.
          const of = from >= 1000 ? 1 : 0;
          expect(ends[1].use(ids[of], chunk)).toEqual(made(of, chunk));
          used[of]++;
        };
        for (const [i, what] of turns.entries()) {
          const r = i % 2;
          const chunk = chunkAt(100 * r + computed[r]);
          if (i === 5) for (const id of ids) ends[1].rows.expect(id, 1);
          if (i < 5 && !early && what !== 'tell') continue;
          if (what === 'tell') tell(ends);
          else if (what === 'use') use();
          else ends[0].compute(ids[r], chunk, what === 'fail' ? undefined : made(r, chunk));
          if (what === 'compute') computed[r]++;
        }
        // What came to nothing and is not tried again is not wanted.
        ends[0].rows.sweep(none);
        while (tell(ends) || ends[1].heard.length > 0) use();
        expect(used).toEqual(computed);
        ends[1].rows.sweep(none);
        while (tell(ends));
        expect(underWay(ends)).toEqual([0, 0]);
      }),
      { numRuns: 200, examples: [stuck] },
    );
  });

  it.each([0, 1, 2, 3])('are dropped by both sides when they are cancelled after %i turns', (turns) => {
    const ends = pair();
    ends[1].rows.expect('r', 1);
    for (let i = 0; i < 9; i++) ends[0].compute('r', chunkAt(i), i === 8 ? undefined : made(2, chunkAt(i)));
    for (let turn = 0; turn < turns; turn++) tell(ends);
    for (const { rows } of ends) rows.sweep(none);
    while (tell(ends)) for (const { rows } of ends) rows.sweep(none);
    expect(underWay(ends)).toEqual([0, 0]);
    // All room is there again.
    ends[1].rows.expect('s', 1);
    ends[1].heard.splice(0);
    for (let i = 0; i < 9; i++) ends[0].compute('s', chunkAt(i), made(5, chunkAt(i)));
    for (let i = 0; i < 9; i++) {
      while (tell(ends));
      expect(ends[1].use('s', chunkAt(i))).toEqual(made(5, chunkAt(i)));
    }
    while (tell(ends));
    expect(underWay(ends)).toEqual([0, 0]);
  });

  it.each([0, 1, 2, 3])(
    'are dropped by a member that loses the other after %i turns, except those that have arrived',
    (turns) => {
      const ends = pair();
      ends[1].rows.expect('r', 1);
      for (let i = 0; i < 9; i++) ends[0].compute('r', chunkAt(i), made(3, chunkAt(i)));
      for (let turn = 0; turn < turns; turn++) tell(ends);
      ends[0].rows.onPeerLost(2);
      ends[1].told.splice(0);
      ends[1].rows.onPeerLost(1);
      expect(ends[1].heard).toHaveLength(ends[1].rows.inFlight);
      for (const from of ends[1].heard)
        expect(ends[1].use('r', chunkAt(from / 10))).toEqual(made(3, chunkAt(from / 10)));
      // Nothing is kept for a lost member.
      expect([underWay(ends), ends[1].told]).toEqual([[0, 0], []]);
    },
  );

  it('of what is over have the receiveBuffer closed that they were to come to, and another is told of instead', () => {
    const ends = pair();
    ends[1].rows.expect('r', 1);
    const [first] = ends[1].told.splice(0);
    if (first?.kind !== 'activationsBuffer') throw new Error('no room is kept');
    ends[1].rows.onMessage(1, {
      kind: 'activations',
      number: 1,
      id: 'over',
      chunk: chunkAt(0),
      receiveBuffer: first.receiveBuffer,
    });
    expect(ends[1].told).toMatchObject([{ kind: 'activationsBuffer', number: undefined }]);
  });

  it('that were given up are reported, even if the next step begins before the poll', () => {
    const ends = pair();
    ends[1].rows.expect('r', 1);
    tell(ends);
    ends[0].cut = true;
    ends[0].compute('r', chunkAt(0), made(1, chunkAt(0)));
    ends[0].giveUp();
    ends[0].rows.begin(2, 's', chunkAt(1));
    expect(ends[0].rows.poll(0)).toEqual([{ kind: 'streamBroken', id: 'r', to: 2, ofActivations: true }]);
    expect(ends[0].rows.poll(0)).toEqual([]);
  });

  it('that wait for room are looked after soon, and others that are on their way now and then', () => {
    const ends = pair();
    ends[1].rows.expect('r', 1);
    tell(ends);
    ends[0].cut = true;
    for (let i = 0; i < roomsOut; i++) ends[0].compute('r', chunkAt(i), made(1, chunkAt(i)));
    ends[0].rows.poll(0);
    expect(ends[0].rows.nextUs).toBe(1_000_000);
    for (let i = roomsOut; i < roomsOut + 2; i++) ends[0].compute('r', chunkAt(i), made(1, chunkAt(i)));
    while (tell(ends));
    expect(ends[0].rows.nextUs).toBe(1000);
  });

  it('that wait for room in such numbers that no more should be made are told of, and that there is room again', () => {
    const ends = pair();
    const [{ rows }] = ends;
    let computed = 0;
    while (!rows.isBackpressured('r')) ends[0].compute('r', chunkAt(computed), made(1, chunkAt(computed++)));
    // The last room is for one that knows where to go.
    expect(computed).toBe(roomsOut - 1 + 4);
    // One that was begun is done with: the other side keeps room for it.
    ends[0].compute('r', chunkAt(computed), undefined);
    expect(rows.isBackpressured('r')).toBe(false);
    // Nothing of another prompt begins for that.
    expect(rows.isBackpressured('s')).toBe(true);
    ends[0].compute('r', chunkAt(computed), made(1, chunkAt(computed++)));
    expect(rows.isBackpressured('r')).toBe(true);
    rows.poll(0);
    expect(rows.nextUs).toBe(1_000_000);
    ends[1].rows.expect('r', 1);
    // The next member takes one after the other.
    for (let taken = 0; taken < computed; taken++) {
      while (tell(ends));
      expect(ends[1].use('r', chunkAt(taken))).toEqual(made(1, chunkAt(taken)));
    }
    while (tell(ends));
    expect([rows.isBackpressured('r'), rows.nextUs, rows.inFlight]).toEqual([false, Number.POSITIVE_INFINITY, 0]);
    expect(ends[0].woken).toBe(1);
  });

  it('that come to nothing keep no room', () => {
    const [{ rows }] = pair();
    // No receive buffer is granted yet: one buffer is for chunks with a grant.
    expect(rows.begin(2, 'r', chunkAt(0))).toBeDefined();
    rows.ended(2, 'r', chunkAt(0), undefined);
    expect(rows.begin(2, 's', chunkAt(0))).toBeDefined();
    expect(rows.begin(2, 'r', chunkAt(0))).toBeUndefined();
  });

  it('of another member than the one before are not taken', () => {
    const ends = pair();
    ends[1].rows.expect('r', 7);
    ends[0].compute('r', chunkAt(0), made(4, chunkAt(0)));
    while (tell(ends));
    expect([ends[1].heard, ends[0].rows.inFlight]).toEqual([[], 0]);
    // It never arrives.
    expect(ends[1].rows.rowsOf('r', chunkAt(0))).toMatchObject({ arrivals: 2 ** 31 - 1, withinMs: 0 });
  });
});
