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
