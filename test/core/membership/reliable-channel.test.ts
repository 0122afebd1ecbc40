// Links over a bus that loses, doubles and reorders: everything arrives once, whole and in order, or the link says that it is broken.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type ChannelConfig,
  type ChannelEffect,
  type ChannelEvent,
  ReliableChannel,
} from '../../../src/core/membership/reliable-channel.ts';

const small: ChannelConfig = { partBytesMax: 3, messageBytesMax: 64, keptBytesMax: 1_000 };
const message = (...bytes: number[]) => Uint8Array.from(bytes);

/** Two ends, and what is under way between them. */
class Pair {
  readonly ends: readonly [ReliableChannel, ReliableChannel];
  readonly heard: readonly [number[][], number[][]] = [[], []];
  readonly broken: string[] = [];
  readonly #way: [ChannelEvent[], ChannelEvent[]] = [[], []];

  constructor(config = small) {
    this.ends = [new ReliableChannel(config), new ReliableChannel(config)];
  }

  send(from: 0 | 1, bytes: Uint8Array): void {
    this.#tell(from, { kind: 'send', message: bytes });
  }

  tally(from: 0 | 1): void {
    this.#way[from].push({ kind: 'tally', ...this.ends[from].tally });
  }

  /** Of what `from` said and is under way, that at `nth` is lost, arrives, or arrives twice; `stays`: it comes once more, later. */
  pass(from: 0 | 1, times: number, nth = 0, stays = false): void {
    const way = this.#way[from];
    const at = Math.min(nth, way.length - 1);
    const event = way[at];
    if (event === undefined) return;
    if (!stays) way.splice(at, 1);
    for (let i = 0; i < times; i++) this.#tell(from === 0 ? 1 : 0, event);
  }

  /** Nothing is lost any more. */
  settle(): void {
    for (let round = 0; round < 3; round++) {
      this.tally(0);
      this.tally(1);
      while (this.#way[0].length + this.#way[1].length > 0) {
        this.pass(0, 1);
        this.pass(1, 1);
      }
    }
  }

  #tell(end: 0 | 1, event: ChannelEvent): void {
    for (const effect of this.ends[end].step(event)) this.#carryOut(end, effect);
  }

  #carryOut(end: 0 | 1, effect: ChannelEffect): void {
    if (effect.kind === 'publish') this.#way[end].push({ kind: 'part', part: effect.part });
    if (effect.kind === 'ask') this.#way[end].push({ kind: 'again', from: effect.from });
    if (effect.kind === 'deliver') this.heard[end].push([...effect.message]);
    if (effect.kind === 'broken') this.broken.push(effect.why);
  }
}

describe('a link', () => {
  test('delivers all messages once, whole and in order, whatever the bus does', () => {
    const end = fc.constantFrom<0 | 1>(0, 1);
    const act = fc.oneof(
      fc.record({ kind: fc.constant('send' as const), end, bytes: fc.uint8Array({ maxLength: 10 }) }),
      fc.record({ kind: fc.constant('tally' as const), end }),
      fc.record({
        ...{ kind: fc.constant('pass' as const), end, times: fc.integer({ min: 0, max: 2 }) },
        ...{ nth: fc.nat({ max: 3 }), stays: fc.boolean() },
      }),
    );
    fc.assert(
      fc.property(fc.array(act, { maxLength: 120, size: 'max' }), (acts) => {
        const pair = new Pair();
        const said: [number[][], number[][]] = [[], []];
        for (const each of acts) {
          if (each.kind === 'tally') pair.tally(each.end);
          else if (each.kind === 'pass') pair.pass(each.end, each.times, each.nth, each.stays);
          else {
            pair.send(each.end, each.bytes);
            said[each.end].push([...each.bytes]);
          }
        }
        for (const [heard, sent] of [
          [pair.heard[1], said[0]],
          [pair.heard[0], said[1]],
        ] as const)
          expect(heard).toEqual(sent.slice(0, heard.length));
        pair.settle();
        expect(pair.heard).toEqual([said[1], said[0]]);
        expect(pair.broken).toEqual([]);
      }),
      { numRuns: 200 },
    );
  });

  test('asks once for what is missing, and again with the next tally or when much more has come without it', () => {
    const link = new ReliableChannel(small);
    const part = (number: number) => ({ kind: 'part', part: { number, last: true, bytes: message(1) } }) as const;
    expect(link.step(part(2))).toEqual([{ kind: 'ask', from: 1 }]);
    expect(link.step(part(3))).toEqual([]);
    expect(link.step({ kind: 'tally', sent: 3, heard: 0 })).toEqual([{ kind: 'ask', from: 1 }]);
    const more = Array.from({ length: 20 }, (_, i) => link.step(part(4 + i)).length);
    expect(more).toEqual(more.map((_, i) => Number(i === 15)));
    expect(link.step(part(1))).toMatchObject([{ kind: 'deliver' }]);
    expect(link.step(part(3))).toEqual([{ kind: 'ask', from: 2 }]);
    expect(link.tally).toEqual({ sent: 0, heard: 1 });
  });

  test('takes an asking that comes late or twice for what it is: the part was heard since', () => {
    const link = new ReliableChannel(small);
    const say = (byte: number) => link.step({ kind: 'send', message: message(byte) });
    for (const byte of [1, 2, 3]) say(byte);
    const numbers = (from: number) =>
      link.step({ kind: 'again', from }).flatMap((effect) => (effect.kind === 'publish' ? effect.part.number : []));
    expect(numbers(1)).toEqual([1, 2, 3]);
    expect(link.step({ kind: 'tally', sent: 0, heard: 2 })).toEqual([]);
    expect(numbers(1)).toEqual([]);
    expect(numbers(3)).toEqual([3]);
    expect(say(4)).toMatchObject([{ kind: 'publish', part: { number: 4 } }]);
  });

  test('is broken when the other side cannot have what it tells or asks for, or never takes anything', () => {
    const impossible = new ReliableChannel(small);
    expect(impossible.step({ kind: 'tally', sent: 0, heard: 1 })).toMatchObject([{ kind: 'broken' }]);
    expect(impossible.step({ kind: 'send', message: message(1) })).toEqual([]);
    const ahead = new ReliableChannel(small);
    ahead.step({ kind: 'send', message: message(1) });
    expect(ahead.step({ kind: 'again', from: 3 })).toMatchObject([{ kind: 'broken' }]);
    const pair = new Pair();
    for (let i = 0; i < 101; i++) pair.send(0, new Uint8Array(10));
    expect(pair.broken).toEqual(['1010 bytes were not taken: 1000 are kept']);
  });

  test('refuses messages over its bound', () => {
    const pair = new Pair();
    pair.send(0, new Uint8Array(64));
    pair.settle();
    expect(pair.heard[1]).toHaveLength(1);
    pair.send(0, new Uint8Array(65));
    pair.settle();
    expect(pair.broken).toEqual(['a message has more than 64 bytes']);
  });
});
