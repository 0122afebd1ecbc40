// Pages in flight to a receive buffer: a halted stream does not send arrived pages again, and pages are read until they are sent or stopped.
import { describe, expect, it } from 'vitest';
import { InFlightPages } from '../../../src/runtime/transfer/in-flight-pages.ts';
import { LiveHandOffs } from '../../../src/runtime/transfer/live-hand-offs.ts';
import type { Messenger, ReceiveBufferHandle } from '../../../src/runtime/transfer/messenger.ts';

/** Descriptors of one layer: page i goes to place i. */
const descriptorsOf = (from: number, end: number) =>
  Int32Array.from(Array.from({ length: end - from }, (_, i) => [0, from + i, from + i]).flat());

/** A messenger that counts pending descriptors and records stopped receive buffers. */
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
  const makeUnreachable = (receiveBuffer: ReceiveBufferHandle) => {
    left.delete(receiveBuffer);
    lost.push(receiveBuffer);
  };
  return { left, stopped, makeUnreachable, messenger };
}

describe('what leaves for a receiveBuffer', () => {
  /** Pages `0..4` and `4..8` are sent, of which so many have arrived. */
  function sending(arrived: number) {
    const { left, stopped, makeUnreachable, messenger } = counting();
    const inFlight = new InFlightPages(messenger);
    for (const [from, end] of [
      [0, 4],
      [4, 8],
    ] as const) {
      expect(inFlight.resumeAt('a', from, end)).toBe(from);
      inFlight.add('a', descriptorsOf(from, end), end);
    }
    left.set('a', 8 - arrived);
    return { inFlight, left, stopped, makeUnreachable };
  }

  it('resumes with the first batch that is not acknowledged', () => {
    const { inFlight, stopped } = sending(5);
    inFlight.halt('a', 8);
    expect(stopped).toEqual(['a']);
    expect(inFlight.resumeAt('a', 8, 12)).toBe(4);
  });

  it('sends replaced pages again', () => {
    const { inFlight } = sending(8);
    inFlight.halt('a', 2);
    expect(inFlight.resumeAt('a', 2, 4)).toBe(2);
  });

  it('sends arrived pages once, although they were computed again', () => {
    const { inFlight } = sending(6);
    inFlight.halt('a', 6);
    // Fewer tokens are computed by then than have arrived.
    expect(inFlight.resumeAt('a', 0, 3)).toBe(3);
    expect(inFlight.resumeAt('a', 3, 6)).toBe(4);
    expect(inFlight.resumeAt('a', 6, 9)).toBe(6);
  });

  it('reads pages until they are sent, and no others', () => {
    const { inFlight, left } = sending(0);
    inFlight.halt('a', 4);
    expect([1, 5].map((page) => inFlight.isRead(Int32Array.of(page)))).toEqual([true, false]);
    inFlight.add('a', descriptorsOf(inFlight.resumeAt('a', 4, 8), 8), 8);
    left.set('a', 8);
    expect([1, 5].map((page) => inFlight.isRead(Int32Array.of(page)))).toEqual([true, true]);
    left.set('a', 0);
    expect([1, 5].map((page) => inFlight.isRead(Int32Array.of(page)))).toEqual([false, false]);
  });

  it('reads resent pages after a second step fails', () => {
    const { inFlight, left } = sending(2);
    inFlight.halt('a', 4);
    const begin = inFlight.resumeAt('a', 4, 8);
    expect(begin).toBe(0);
    inFlight.add('a', descriptorsOf(begin, 8), 8, { descriptors: descriptorsOf(begin, 4), end: 4 });
    left.set('a', 8);
    inFlight.halt('a', 4);
    expect([1, 5].map((page) => inFlight.isRead(Int32Array.of(page)))).toEqual([true, false]);
    expect(inFlight.resumeAt('a', 4, 8)).toBe(0);
  });

  it('does not resume to an unreachable buffer, and reads no page for it', () => {
    const { inFlight, stopped, makeUnreachable } = sending(5);
    makeUnreachable('a');
    inFlight.halt('a', 8);
    // The messenger sends nothing to an unreachable buffer, so that it is not stopped.
    expect(stopped).toEqual([]);
    expect([...inFlight.takeUnreachable()]).toEqual(['a']);
    expect([...inFlight.takeUnreachable()]).toEqual([]);
  });
});

describe('a prompt that is sent', () => {
  it.each(['received', 'declined'] as const)('is no longer read once the receiver sends %s', (kind) => {
    const { stopped, messenger } = counting();
    const handOffs = new LiveHandOffs({
      post: () => {},
      messenger: messenger as unknown as Messenger,
      shape: { groups: [{ layers: 1, window: undefined }], layers: [{ group: 0, index: 0 }] },
      pageBytes: 64,
    });
    handOffs.onMessage(1, { kind: 'message', message: { kind: 'reserved', id: 'r' }, receiveBuffer: 'there' });
    // A message of another instance about the same id concerns another receive buffer.
    handOffs.onMessage(2, { kind: 'message', message: { kind, id: 'r' }, receiveBuffer: undefined });
    expect(stopped).toEqual([]);
    handOffs.onMessage(1, { kind: 'message', message: { kind, id: 'r' }, receiveBuffer: undefined });
    expect(stopped).toEqual(['there']);
  });
});
