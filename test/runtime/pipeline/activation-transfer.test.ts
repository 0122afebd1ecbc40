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
const [sendBufferCount, receiveBufferCount] = [2, 4];

interface ReceiveBuffer {
  readonly pool: Float32Array;
  readonly pages: Int32Array;
  readonly done: string[];
}

interface Descriptors {
  readonly receiveBuffer: string;
  readonly step: number;
  readonly descriptors: Int32Array;
}

/** A member with pages of its own. Activations are copied as soon as their step has run. */
class Member {
  readonly transfer: ActivationTransfer;
  readonly sentWires: ActivationWire[] = [];
  /** First tokens of received chunks. */
  readonly receivedChunks: number[] = [];
  readonly #pool = new Float32Array((sendBufferCount + receiveBufferCount) * chunkPages * pageValues);
  readonly #openBuffers: Map<string, ReceiveBuffer>;
  /** Number of reported ends of backpressure. */
  wakes = 0;
  #ran = 0;
  #lost: string[] = [];
  /** No member is reachable: ready chunks wait. */
  disconnected = false;
  #unsent: Descriptors[] = [];

  constructor(name: string, openBuffers: Map<string, ReceiveBuffer>) {
    this.#openBuffers = openBuffers;
    const done: string[] = [];
    let count = 0;
    const messenger: Messenger = {
      counts: { pages: 0, bytes: 0, earlyBytes: 0, streams: 0, firstPages: 0, copySeconds: 0, faults: 0 },
      nextPoolStep: 0,
      open: (pages) => {
        const handle = `${name}${++count}`;
        openBuffers.set(handle, { pool: this.#pool, pages, done });
        return handle;
      },
      arrivals: (handle) => Number(handle.slice(1)),
      close: (handle) => void openBuffers.delete(handle),
      received: () => done.splice(0),
      unreachable: () => this.#lost.splice(0),
      send: (receiveBuffer, step, descriptors) => {
        this.#unsent.push({ receiveBuffer, step, descriptors });
        this.#carry();
      },
      stop: (receiveBuffer) => {
        this.#unsent = this.#unsent.filter((each) => each.receiveBuffer !== receiveBuffer);
      },
      pending: (receiveBuffer) => this.#unsent.filter((each) => each.receiveBuffer === receiveBuffer).length,
      transportTo: () => 'thread',
    };
    Object.defineProperty(messenger, 'nextPoolStep', { get: () => this.#ran + 1 });
    const memory: ActivationMemory = {
      ...{
        pool: 1,
        sendBuffers: sendBufferCount,
        receiveBuffers: receiveBufferCount,
        chunkPages,
        pageValues,
        rowValues: columns,
      },
      write: (pages, rows) => this.#leave(pages, rows),
    };
    this.transfer = new ActivationTransfer(memory, messenger, (_, wire) => this.sentWires.push(wire));
  }

  #leave(pages: Int32Array, rows: Float32Array): void {
    for (let i = 0; i * pageValues < rows.length; i++)
      this.#pool.set(rows.subarray(i * pageValues, (i + 1) * pageValues), pages[i] * pageValues);
  }

  /** The messenger declares the waiting receive buffers unreachable, and drops their descriptors. */
  makeUnreachable(): void {
    this.#lost.push(...this.#unsent.map(({ receiveBuffer }) => receiveBuffer));
    this.#unsent = [];
  }

  /** Copies the pages of steps that have run. */
  #carry(): void {
    if (this.disconnected) return;
    for (const { receiveBuffer, descriptors } of this.#unsent.filter(({ step }) => step <= this.#ran)) {
      const to = this.#openBuffers.get(receiveBuffer);
      for (let i = 0; i < descriptors.length; i += 3) {
        const from = descriptors[i + 1] * pageValues;
        to?.pool.set(this.#pool.subarray(from, from + pageValues), to.pages[descriptors[i + 2]] * pageValues);
      }
      to?.done.push(receiveBuffer);
    }
    this.#unsent = this.#unsent.filter(({ step }) => step > this.#ran);
  }

  /** Runs a step over a chunk, whose activations go to the other member. */
  compute(id: string, chunk: Chunk, activationsOf: Float32Array | undefined): void {
    const pages = this.transfer.begin(2, id, chunk)?.pages;
    if (activationsOf !== undefined && pages !== undefined) {
      this.#leave(pages, activationsOf);
      this.#ran++;
      this.#carry();
    }
    this.transfer.ended(2, id, chunk, activationsOf && (() => activationsOf));
  }

  /** Reads the activations of a chunk, as the step over it would. */
  use(id: string, chunk: Chunk): Float32Array {
    const { pages } = this.transfer.rowsOf(id, chunk);
    const all = Float32Array.from(
      [...pages].flatMap((page) => [...this.#pool.subarray(page * pageValues, (page + 1) * pageValues)]),
    );
    this.transfer.used(id, chunk);
    return all.subarray(0, (chunk.tokens - chunk.from) * columns);
  }

  pollEvents(): void {
    for (const event of this.transfer.poll(0)) {
      if (event.kind === 'activations') this.receivedChunks.push(event.from);
      if (event.kind === 'wake') this.wakes++;
    }
  }
}

interface Chunk {
  readonly from: number;
  readonly tokens: number;
  readonly cachedTokens: number;
}

const chunkAt = (i: number): Chunk => ({ from: 10 * i, tokens: 10 * i + 1 + ((7 * i) % 10), cachedTokens: 0 });
const activationsOf = (seed: number, { from, tokens }: Chunk) =>
  Float32Array.from({ length: (tokens - from) * columns }, (_, i) => seed + from + i / 7);

function pair(): readonly [Member, Member] {
  const openBuffers = new Map<string, ReceiveBuffer>();
  return [new Member('a', openBuffers), new Member('b', openBuffers)];
}

/** Delivers the messages of both members so far; those to the sender are duplicated. */
function exchange([a, b]: readonly [Member, Member]): boolean {
  const [fromA, fromB] = [a.sentWires.splice(0), b.sentWires.splice(0)];
  for (const wire of fromA) b.transfer.onMessage(1, wire);
  for (const wire of fromB) for (let i = 0; i < 2; i++) a.transfer.onMessage(2, wire);
  for (const end of [a, b]) end.pollEvents();
  return fromA.length + fromB.length > 0;
}

const chunksInFlight = (members: readonly [Member, Member]) => members.map(({ transfer }) => transfer.inFlight);
const none = () => false;

describe('activations between members', () => {
  it('are sent with their step if the next member has granted a receive buffer', () => {
    const members = pair();
    members[1].transfer.expect('r', 1);
    exchange(members);
    members[0].compute('r', chunkAt(3), activationsOf(1, chunkAt(3)));
    members[0].pollEvents();
    // The chunk has arrived before its announcement.
    expect(members[0].transfer.inFlight).toBe(0);
    while (exchange(members));
    expect(members[1].receivedChunks).toEqual([30]);
    expect(members[1].use('r', chunkAt(3))).toEqual(activationsOf(1, chunkAt(3)));
    expect(chunksInFlight(members)).toEqual([0, 0]);
  });

  it('arrive completely and in order if chunks outnumber buffers and steps fail', () => {
    type Turn = 'compute' | 'fail' | 'tell' | 'use';
    const turn = fc.constantFrom<Turn>('compute', 'fail', 'tell', 'use');
    const often = (count: number): Turn[] => Array.from({ length: count }, () => 'compute');
    // All send buffers hold chunks without a receive buffer, and all receive buffers are granted to chunks without a send buffer.
    const stuck: [Turn[], boolean] = [[...often(4), 'tell', ...often(2), 'tell', ...often(4)], true];
    fc.assert(
      fc.property(fc.array(turn, { maxLength: 60 }), fc.boolean(), (turns, early) => {
        const members = pair();
        const ids = ['r', 's'];
        if (early) for (const id of ids) members[1].transfer.expect(id, 1);
        const computed = [0, 0];
        const used = [0, 0];
        const use = () => {
          if (members[1].receivedChunks.length === 0) return;
          const [from] = members[1].receivedChunks.splice(0, 1);
          const chunk = chunkAt(from / 10);
          // The first token identifies the prompt.
          const of = from >= 1000 ? 1 : 0;
          expect(members[1].use(ids[of], chunk)).toEqual(activationsOf(of, chunk));
          used[of]++;
        };
        for (const [i, what] of turns.entries()) {
          const r = i % 2;
          const chunk = chunkAt(100 * r + computed[r]);
          if (i === 5) for (const id of ids) members[1].transfer.expect(id, 1);
          if (i < 5 && !early && what !== 'tell') continue;
          if (what === 'tell') exchange(members);
          else if (what === 'use') use();
          else members[0].compute(ids[r], chunk, what === 'fail' ? undefined : activationsOf(r, chunk));
          if (what === 'compute') computed[r]++;
        }
        // Failed chunks that are not computed again are dropped.
        members[0].transfer.sweep(none);
        while (exchange(members) || members[1].receivedChunks.length > 0) use();
        expect(used).toEqual(computed);
        members[1].transfer.sweep(none);
        while (exchange(members));
        expect(chunksInFlight(members)).toEqual([0, 0]);
      }),
      { numRuns: 200, examples: [stuck] },
    );
  });

  it.each([0, 1, 2, 3])('are dropped by both sides when they are cancelled after %i turns', (turns) => {
    const members = pair();
    members[1].transfer.expect('r', 1);
    for (let i = 0; i < 9; i++) members[0].compute('r', chunkAt(i), i === 8 ? undefined : activationsOf(2, chunkAt(i)));
    for (let turn = 0; turn < turns; turn++) exchange(members);
    for (const { transfer } of members) transfer.sweep(none);
    while (exchange(members)) for (const { transfer } of members) transfer.sweep(none);
    expect(chunksInFlight(members)).toEqual([0, 0]);
    // All buffers are free again.
    members[1].transfer.expect('s', 1);
    members[1].receivedChunks.splice(0);
    for (let i = 0; i < 9; i++) members[0].compute('s', chunkAt(i), activationsOf(5, chunkAt(i)));
    for (let i = 0; i < 9; i++) {
      while (exchange(members));
      expect(members[1].use('s', chunkAt(i))).toEqual(activationsOf(5, chunkAt(i)));
    }
    while (exchange(members));
    expect(chunksInFlight(members)).toEqual([0, 0]);
  });

  it.each([0, 1, 2, 3])(
    'are dropped by a member that loses the other after %i turns, except those that have arrived',
    (turns) => {
      const members = pair();
      members[1].transfer.expect('r', 1);
      for (let i = 0; i < 9; i++) members[0].compute('r', chunkAt(i), activationsOf(3, chunkAt(i)));
      for (let turn = 0; turn < turns; turn++) exchange(members);
      members[0].transfer.onPeerLost(2);
      members[1].sentWires.splice(0);
      members[1].transfer.onPeerLost(1);
      expect(members[1].receivedChunks).toHaveLength(members[1].transfer.inFlight);
      for (const from of members[1].receivedChunks)
        expect(members[1].use('r', chunkAt(from / 10))).toEqual(activationsOf(3, chunkAt(from / 10)));
      // Nothing is kept for a lost member.
      expect([chunksInFlight(members), members[1].sentWires]).toEqual([[0, 0], []]);
    },
  );

  it('change the links when they leave late, and when they have arrived, without an event', () => {
    const members = pair();
    const [{ transfer }] = members;
    members[0].compute('r', chunkAt(0), activationsOf(1, chunkAt(0)));
    expect([transfer.linkChanges, transfer.links]).toEqual([0, []]);
    members[0].disconnected = true;
    members[1].transfer.expect('r', 1);
    const [grant] = members[1].sentWires.splice(0);
    if (grant?.kind !== 'activationsBuffer') throw new Error('no receive buffer is granted');
    transfer.onMessage(2, { ...grant, number: 1 });
    const bytes = 4 * columns * (chunkAt(0).tokens - chunkAt(0).from);
    expect([transfer.linkChanges, transfer.links]).toMatchObject([1, [{ bytes, backlogBytes: bytes }]]);
    members[0].makeUnreachable();
    transfer.poll(0);
    expect([transfer.linkChanges, transfer.links]).toMatchObject([2, [{ bytes, backlogBytes: 0 }]]);
  });

  it('of an ended prompt free their receive buffer, and another one is granted', () => {
    const members = pair();
    members[1].transfer.expect('r', 1);
    const [first] = members[1].sentWires.splice(0);
    if (first?.kind !== 'activationsBuffer') throw new Error('no receive buffer is granted');
    members[1].transfer.onMessage(1, {
      kind: 'activations',
      number: 1,
      id: 'over',
      chunk: chunkAt(0),
      receiveBuffer: first.receiveBuffer,
    });
    expect(members[1].sentWires).toMatchObject([{ kind: 'activationsBuffer', number: undefined }]);
  });

  it('to an unreachable member are reported, even if the next step begins before the poll', () => {
    const members = pair();
    members[1].transfer.expect('r', 1);
    exchange(members);
    members[0].disconnected = true;
    members[0].compute('r', chunkAt(0), activationsOf(1, chunkAt(0)));
    members[0].makeUnreachable();
    members[0].transfer.begin(2, 's', chunkAt(1));
    expect(members[0].transfer.poll(0)).toEqual([{ kind: 'streamBroken', id: 'r', to: 2, ofActivations: true }]);
    expect(members[0].transfer.poll(0)).toEqual([]);
  });

  it('are polled soon while they wait for a send buffer, and rarely while they are in transit', () => {
    const members = pair();
    members[1].transfer.expect('r', 1);
    exchange(members);
    members[0].disconnected = true;
    for (let i = 0; i < sendBufferCount; i++) members[0].compute('r', chunkAt(i), activationsOf(1, chunkAt(i)));
    members[0].transfer.poll(0);
    expect(members[0].transfer.nextUs).toBe(1_000_000);
    for (let i = sendBufferCount; i < sendBufferCount + 2; i++)
      members[0].compute('r', chunkAt(i), activationsOf(1, chunkAt(i)));
    while (exchange(members));
    expect(members[0].transfer.nextUs).toBe(1000);
  });

  it('cause backpressure while many wait for buffers, and report its end', () => {
    const members = pair();
    const [{ transfer }] = members;
    let computed = 0;
    while (!transfer.isBackpressured('r'))
      members[0].compute('r', chunkAt(computed), activationsOf(1, chunkAt(computed++)));
    // The last send buffer is for chunks with a receive buffer.
    expect(computed).toBe(sendBufferCount - 1 + 4);
    // A restarted chunk is exempt: the next member keeps a buffer for it.
    members[0].compute('r', chunkAt(computed), undefined);
    expect(transfer.isBackpressured('r')).toBe(false);
    // Other prompts still have backpressure.
    expect(transfer.isBackpressured('s')).toBe(true);
    members[0].compute('r', chunkAt(computed), activationsOf(1, chunkAt(computed++)));
    expect(transfer.isBackpressured('r')).toBe(true);
    transfer.poll(0);
    expect(transfer.nextUs).toBe(1_000_000);
    members[1].transfer.expect('r', 1);
    // The next member reads one chunk after the other.
    for (let taken = 0; taken < computed; taken++) {
      while (exchange(members));
      expect(members[1].use('r', chunkAt(taken))).toEqual(activationsOf(1, chunkAt(taken)));
    }
    while (exchange(members));
    expect([transfer.isBackpressured('r'), transfer.nextUs, transfer.inFlight]).toEqual([
      false,
      Number.POSITIVE_INFINITY,
      0,
    ]);
    expect(members[0].wakes).toBe(1);
  });

  it('of failed steps keep no buffer', () => {
    const [{ transfer }] = pair();
    // No receive buffer is granted yet: one buffer is for chunks with a grant.
    expect(transfer.begin(2, 'r', chunkAt(0))).toBeDefined();
    transfer.ended(2, 'r', chunkAt(0), undefined);
    expect(transfer.begin(2, 's', chunkAt(0))).toBeDefined();
    expect(transfer.begin(2, 'r', chunkAt(0))).toBeUndefined();
  });

  it('of another member than the previous one are cancelled', () => {
    const members = pair();
    members[1].transfer.expect('r', 7);
    members[0].compute('r', chunkAt(0), activationsOf(4, chunkAt(0)));
    while (exchange(members));
    expect([members[1].receivedChunks, members[0].transfer.inFlight]).toEqual([[], 0]);
    // It never arrives.
    expect(members[1].transfer.rowsOf('r', chunkAt(0))).toMatchObject({ arrivals: 2 ** 31 - 1, withinMs: 0 });
  });
});
