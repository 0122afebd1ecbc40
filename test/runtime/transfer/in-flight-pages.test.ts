// What leaves for a receiveBuffer, halted and gone on with: what has arrived does not leave again, and pages are read for as long as something is to leave from them.
import { describe, expect, it } from 'vitest';
import { InFlightPages } from '../../../src/runtime/transfer/in-flight-pages.ts';
import { LiveHandOffs } from '../../../src/runtime/transfer/live-hand-offs.ts';
import type { Messenger, ReceiveBufferHandle } from '../../../src/runtime/transfer/messenger.ts';

/** Parcels of one layer: page i goes to place i. */
const parcels = (from: number, end: number) =>
  Int32Array.from(Array.from({ length: end - from }, (_, i) => [0, from + i, from + i]).flat());

/** Counts what may still be read, says when it is told to stop, and gives up what it is told to. */
function counting() {
  const left = new Map<ReceiveBufferHandle, number>();
  const stopped: ReceiveBufferHandle[] = [];
  const lost: ReceiveBufferHandle[] = [];
  const messenger = {
    unreachable: () => lost.splice(0),
    pending: (receiveBuffer: ReceiveBufferHandle) => left.get(receiveBuffer) ?? 0,
    stop: (receiveBuffer: ReceiveBufferHandle) => {
      stopped.push(receiveBuffer);
      left.delete(receiveBuffer);
    },
  };
  const giveUp = (receiveBuffer: ReceiveBufferHandle) => {
    left.delete(receiveBuffer);
    lost.push(receiveBuffer);
  };
  return { left, stopped, giveUp, messenger };
}

describe('what leaves for a receiveBuffer', () => {
  /** Units `0..4` and `4..8` are on their way, of which so many have arrived. */
  function leaving(arrived: number) {
    const { left, stopped, giveUp, messenger } = counting();
    const unsent = new InFlightPages(messenger);
    for (const [from, end] of [
      [0, 4],
      [4, 8],
    ] as const) {
      expect(unsent.resumeAt('a', from, end)).toBe(from);
      unsent.add('a', parcels(from, end), end);
    }
    left.set('a', 8 - arrived);
    return { unsent, left, stopped, giveUp };
  }

  it('goes on with the first that is not known to have arrived', () => {
    const { unsent, stopped } = leaving(5);
    unsent.halt('a', 8);
    expect(stopped).toEqual(['a']);
    expect(unsent.resumeAt('a', 8, 12)).toBe(4);
  });

  it('begins again where pages are others', () => {
    const { unsent } = leaving(8);
    unsent.halt('a', 2);
    expect(unsent.resumeAt('a', 2, 4)).toBe(2);
  });

  it('leaves nothing twice that has arrived, though it was computed again', () => {
    const { unsent } = leaving(6);
    unsent.halt('a', 6);
    // Less is computed by then than has arrived.
    expect(unsent.resumeAt('a', 0, 3)).toBe(3);
    expect(unsent.resumeAt('a', 3, 6)).toBe(4);
    expect(unsent.resumeAt('a', 6, 9)).toBe(6);
  });

  it('is read from pages that stay until it has left from them, and from no others', () => {
    const { unsent, left } = leaving(0);
    unsent.halt('a', 4);
    expect([1, 5].map((page) => unsent.isRead(Int32Array.of(page)))).toEqual([true, false]);
    unsent.add('a', parcels(unsent.resumeAt('a', 4, 8), 8), 8);
    left.set('a', 8);
    expect([1, 5].map((page) => unsent.isRead(Int32Array.of(page)))).toEqual([true, true]);
    left.set('a', 0);
    expect([1, 5].map((page) => unsent.isRead(Int32Array.of(page)))).toEqual([false, false]);
  });

  it('is read from pages that stay, though a second step that it leaves with comes to nothing', () => {
    const { unsent, left } = leaving(2);
    unsent.halt('a', 4);
    const begin = unsent.resumeAt('a', 4, 8);
    expect(begin).toBe(0);
    unsent.add('a', parcels(begin, 8), 8, { descriptors: parcels(begin, 4), end: 4 });
    left.set('a', 8);
    unsent.halt('a', 4);
    expect([1, 5].map((page) => unsent.isRead(Int32Array.of(page)))).toEqual([true, false]);
    expect(unsent.resumeAt('a', 4, 8)).toBe(0);
  });

  it('does not go on where it was given up: of what did not arrive nothing is left to be read either', () => {
    const { unsent, stopped, giveUp } = leaving(5);
    giveUp('a');
    unsent.halt('a', 8);
    // The messenger sends nothing there before it is told to stop.
    expect(stopped).toEqual([]);
    expect([...unsent.takeUnreachable()]).toEqual(['a']);
    expect([...unsent.takeUnreachable()]).toEqual([]);
  });
});

describe('a prompt that leaves', () => {
  it.each(['received', 'declined'] as const)('is read no more once the other side says %s', (kind) => {
    const { stopped, messenger } = counting();
    const handOffs = new LiveHandOffs({
      post: () => {},
      messenger: messenger as unknown as Messenger,
      shape: { groups: [{ layers: 1, window: undefined }], layers: [{ group: 0, index: 0 }] },
      pageBytes: 64,
    });
    handOffs.onMessage(1, { kind: 'message', message: { kind: 'reserved', id: 'r' }, receiveBuffer: 'there' });
    // What another instance says of a request of the same name is about another receive buffer.
    handOffs.onMessage(2, { kind: 'message', message: { kind, id: 'r' }, receiveBuffer: undefined });
    expect(stopped).toEqual([]);
    handOffs.onMessage(1, { kind: 'message', message: { kind, id: 'r' }, receiveBuffer: undefined });
    expect(stopped).toEqual(['there']);
  });
});
