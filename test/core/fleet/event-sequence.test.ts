// The order of an engine's KV event batches under loss, duplication, replays and restarts.
import { describe, expect, it } from 'vitest';
import { EventSequence, type SequenceEffect } from '../../../src/core/fleet/event-sequence.ts';

const batch = (atS: number) => ({ atS, rank: undefined, events: [] });
/** The times of applied batches, `reset`, and the first numbers of replays. */
const brief = (effects: readonly SequenceEffect[]) =>
  effects.map((effect) =>
    effect.kind === 'apply' ? effect.batch.atS : effect.kind === 'replay' ? `from ${effect.from}` : 'reset',
  );

describe('EventSequence', () => {
  it('has the batches before a late start replayed, and those of a gap', () => {
    const sequence = new EventSequence(true);
    expect(brief(sequence.connected())).toEqual(['from 0']);
    expect(brief(sequence.received(2, batch(2)))).toEqual([]);
    for (const number of [0, 1, 2]) sequence.replayed(number, batch(number));
    expect(brief(sequence.replayEnded())).toEqual([0, 1, 2]);
    expect(brief(sequence.received(5, batch(5)))).toEqual(['from 3']);
    for (const number of [3, 4, 5]) sequence.replayed(number, batch(number));
    expect(brief(sequence.replayEnded())).toEqual([3, 4, 5]);
    expect(sequence.counts).toEqual({ gaps: 1, lost: 0 });
  });

  it('resets the blocks where a replay does not close the gap', () => {
    const sequence = new EventSequence(true);
    sequence.received(0, batch(0));
    expect(brief(sequence.received(4, batch(4)))).toEqual(['from 1']);
    sequence.replayed(3, batch(3));
    expect(brief(sequence.replayEnded())).toEqual(['reset', 3, 4]);
    expect(brief(sequence.replayEnded())).toEqual([]);
    expect(sequence.counts).toEqual({ gaps: 1, lost: 1 });
  });

  it('resets the blocks at a gap without replays, and starts at any number', () => {
    const sequence = new EventSequence(false);
    expect(brief(sequence.connected())).toEqual([]);
    expect(brief(sequence.received(7, batch(7)))).toEqual([7]);
    expect(brief(sequence.received(9, batch(9)))).toEqual(['reset', 9]);
  });

  it('keeps the batches behind a restart that shows in a replay until the replay from 0 ends', () => {
    const sequence = new EventSequence(true);
    for (let number = 0; number < 100; number++) sequence.received(number, batch(number));
    expect(brief(sequence.connected())).toEqual(['from 100']);
    for (const number of [6, 7]) sequence.received(number, batch(1000 + number));
    expect(brief(sequence.replayEnded())).toEqual(['reset', 'from 0']);
    for (let number = 0; number < 6; number++) sequence.replayed(number, batch(1000 + number));
    expect(brief(sequence.replayEnded())).toEqual([1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007]);
    expect(brief(sequence.received(8, batch(1008)))).toEqual([1008]);
  });

  it('ignores duplicates, and takes a younger batch with an earlier number as a restart', () => {
    const sequence = new EventSequence(true);
    for (const number of [0, 1, 2]) sequence.received(number, batch(number));
    expect(brief(sequence.received(1, batch(1)))).toEqual([]);
    expect(brief(sequence.received(1, batch(10)))).toEqual(['reset', 'from 0']);
    for (const number of [0, 1]) sequence.replayed(number, batch(9 + number));
    expect(brief(sequence.replayEnded())).toEqual([9, 10]);
    expect(brief(sequence.received(0, batch(20)))).toEqual(['reset', 20]);
  });
});

describe('EventSequence beside other gateways', () => {
  const kinds = (effects: readonly SequenceEffect[]) =>
    effects.map((effect) => (effect.kind === 'apply' ? effect.batch.atS : effect.kind));
  const events = [{ kind: 'cleared' }] as const;

  it('takes the blocks of another gateway where a replay does not reach back far enough, and continues after them', () => {
    const sequence = new EventSequence(true, true);
    sequence.connected();
    for (const number of [7, 8]) sequence.replayed(number, batch(number));
    expect([kinds(sequence.replayEnded()), sequence.position]).toEqual([['requestSnapshot'], undefined]);
    expect(kinds(sequence.received(9, batch(9)))).toEqual([]);
    // Behind, of an earlier run of the engine, ahead, without a batch that is here too.
    for (const [next, atS] of [
      [7, 6],
      [8, 70],
      [11, 10],
      [2 ** 50, 8],
    ])
      expect(sequence.fits({ next, atS })).toBe(false);
    expect(sequence.fits({ next: 9, atS: 8 })).toBe(true);
    const snapshot = { next: 9, atS: 8, events };
    expect(kinds(sequence.snapshotEnded(snapshot))).toEqual(['adopt', 9]);
    expect([sequence.position, sequence.counts.lost]).toEqual([{ next: 10, atS: 9 }, 0]);
    expect(kinds(sequence.snapshotEnded(snapshot))).toEqual([]);
  });

  it('resets the blocks where no gateway has a snapshot that fits', () => {
    for (const snapshot of [undefined, { next: 3, atS: 1, events }]) {
      const sequence = new EventSequence(true, true);
      sequence.connected();
      sequence.replayed(7, batch(7));
      sequence.replayEnded();
      expect(kinds(sequence.snapshotEnded(snapshot))).toEqual(['reset', 7]);
    }
  });

  it('requests a snapshot with the first batch, and at each gap, of an engine without replays', () => {
    const sequence = new EventSequence(false, true);
    expect(sequence.connected()).toEqual([]);
    expect(kinds(sequence.received(5, batch(5)))).toEqual(['requestSnapshot']);
    expect(kinds(sequence.snapshotEnded({ next: 6, atS: 5, events }))).toEqual(['adopt']);
    expect(kinds(sequence.received(6, batch(6)))).toEqual([6]);
    expect(kinds(sequence.received(8, batch(8)))).toEqual(['requestSnapshot']);
    expect(kinds(sequence.snapshotEnded(undefined))).toEqual(['reset', 8]);
  });

  it('ignores a snapshot that arrives after a reconnection, or after a restart of the engine', () => {
    const sequence = new EventSequence(true, true);
    sequence.connected();
    sequence.replayed(7, batch(7));
    sequence.replayEnded();
    expect(kinds(sequence.connected())).toEqual(['replay']);
    expect(kinds(sequence.snapshotEnded({ next: 8, atS: 7, events }))).toEqual([]);
    for (const number of [0, 1]) sequence.replayed(number, batch(10 + number));
    expect(kinds(sequence.replayEnded())).toEqual(['requestSnapshot']);
  });
});
