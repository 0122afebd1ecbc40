// Channels over a bus that loses, duplicates and reorders: every message arrives once, whole and in order, or the channel reports that it is broken.

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

/** Two ends, and the messages between them. */
class Pair {
  readonly ends: readonly [ReliableChannel, ReliableChannel];
  readonly received: readonly [number[][], number[][]] = [[], []];
  readonly broken: string[] = [];
  readonly #messages: [ChannelEvent[], ChannelEvent[]] = [[], []];

  constructor(config = small) {
    this.ends = [new ReliableChannel(config), new ReliableChannel(config)];
  }

  send(from: 0 | 1, bytes: Uint8Array): void {
    this.#step(from, { kind: 'send', message: bytes });
  }

  ack(from: 0 | 1): void {
    this.#messages[from].push({ kind: 'ack', ...this.ends[from].ack });
  }

  /** The message at `nth` from `from` is lost, arrives, or arrives twice; `stays`: it arrives once more, later. */
  pass(from: 0 | 1, times: number, nth = 0, stays = false): void {
    const messages = this.#messages[from];
    const at = Math.min(nth, messages.length - 1);
    const event = messages[at];
    if (event === undefined) return;
    if (!stays) messages.splice(at, 1);
    for (let i = 0; i < times; i++) this.#step(from === 0 ? 1 : 0, event);
  }

  /** Delivers everything, without further loss. */
  settle(): void {
    for (let round = 0; round < 3; round++) {
      this.ack(0);
      this.ack(1);
      while (this.#messages[0].length + this.#messages[1].length > 0) {
        this.pass(0, 1);
        this.pass(1, 1);
      }
    }
  }

  #step(end: 0 | 1, event: ChannelEvent): void {
    for (const effect of this.ends[end].step(event)) this.#perform(end, effect);
  }

  #perform(end: 0 | 1, effect: ChannelEffect): void {
    if (effect.kind === 'publish') this.#messages[end].push({ kind: 'part', part: effect.part });
    if (effect.kind === 'nack') this.#messages[end].push({ kind: 'nack', from: effect.from });
    if (effect.kind === 'deliver') this.received[end].push([...effect.message]);
    if (effect.kind === 'broken') this.broken.push(effect.why);
  }
}

describe('a reliable channel', () => {
  test('delivers all messages once, whole and in order, under loss, duplication and reordering', () => {
    const end = fc.constantFrom<0 | 1>(0, 1);
    const act = fc.oneof(
      fc.record({ kind: fc.constant('send' as const), end, bytes: fc.uint8Array({ maxLength: 10 }) }),
      fc.record({ kind: fc.constant('ack' as const), end }),
      fc.record({
        ...{ kind: fc.constant('pass' as const), end, times: fc.integer({ min: 0, max: 2 }) },
        ...{ nth: fc.nat({ max: 3 }), stays: fc.boolean() },
      }),
    );
    fc.assert(
      fc.property(fc.array(act, { maxLength: 120, size: 'max' }), (acts) => {
        const pair = new Pair();
        const sent: [number[][], number[][]] = [[], []];
        for (const each of acts) {
          if (each.kind === 'ack') pair.ack(each.end);
          else if (each.kind === 'pass') pair.pass(each.end, each.times, each.nth, each.stays);
          else {
            pair.send(each.end, each.bytes);
            sent[each.end].push([...each.bytes]);
          }
        }
        for (const [received, expected] of [
          [pair.received[1], sent[0]],
          [pair.received[0], sent[1]],
        ] as const)
          expect(received).toEqual(expected.slice(0, received.length));
        pair.settle();
        expect(pair.received).toEqual([sent[1], sent[0]]);
        expect(pair.broken).toEqual([]);
      }),
      { numRuns: 200 },
    );
  });

  test('sends one nack for a lost part, and again with the next ack or after many further parts', () => {
    const channel = new ReliableChannel(small);
    const part = (number: number) => ({ kind: 'part', part: { number, last: true, bytes: message(1) } }) as const;
    expect(channel.step(part(2))).toEqual([{ kind: 'nack', from: 1 }]);
    expect(channel.step(part(3))).toEqual([]);
    expect(channel.step({ kind: 'ack', sent: 3, received: 0 })).toEqual([{ kind: 'nack', from: 1 }]);
    const more = Array.from({ length: 20 }, (_, i) => channel.step(part(4 + i)).length);
    expect(more).toEqual(more.map((_, i) => Number(i === 15)));
    expect(channel.step(part(1))).toMatchObject([{ kind: 'deliver' }]);
    expect(channel.step(part(3))).toEqual([{ kind: 'nack', from: 2 }]);
    expect(channel.ack).toEqual({ sent: 0, received: 1 });
  });

  test('ignores a late or duplicate nack for acknowledged parts', () => {
    const channel = new ReliableChannel(small);
    const send = (byte: number) => channel.step({ kind: 'send', message: message(byte) });
    for (const byte of [1, 2, 3]) send(byte);
    const numbers = (from: number) =>
      channel.step({ kind: 'nack', from }).flatMap((effect) => (effect.kind === 'publish' ? effect.part.number : []));
    expect(numbers(1)).toEqual([1, 2, 3]);
    expect(channel.step({ kind: 'ack', sent: 0, received: 2 })).toEqual([]);
    expect(numbers(1)).toEqual([]);
    expect(numbers(3)).toEqual([3]);
    expect(send(4)).toMatchObject([{ kind: 'publish', part: { number: 4 } }]);
  });

  test('is broken by an impossible ack or nack, and by too many unacknowledged bytes', () => {
    const impossible = new ReliableChannel(small);
    expect(impossible.step({ kind: 'ack', sent: 0, received: 1 })).toMatchObject([{ kind: 'broken' }]);
    expect(impossible.step({ kind: 'send', message: message(1) })).toEqual([]);
    const ahead = new ReliableChannel(small);
    ahead.step({ kind: 'send', message: message(1) });
    expect(ahead.step({ kind: 'nack', from: 3 })).toMatchObject([{ kind: 'broken' }]);
    const pair = new Pair();
    for (let i = 0; i < 101; i++) pair.send(0, new Uint8Array(10));
    expect(pair.broken).toEqual(['1010 bytes are not acknowledged, at most 1000 are kept']);
  });

  test('is broken by a message over the size limit', () => {
    const pair = new Pair();
    pair.send(0, new Uint8Array(64));
    pair.settle();
    expect(pair.received[1]).toHaveLength(1);
    pair.send(0, new Uint8Array(65));
    pair.settle();
    expect(pair.broken).toEqual(['a message has more than 64 bytes']);
  });
});
