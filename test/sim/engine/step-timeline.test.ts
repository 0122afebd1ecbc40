// Steps as events of a timeline: names, window and maximum number.
import { describe, expect, it } from 'vitest';
import { StepTimeline } from '../../../src/sim/engine/step-timeline.ts';
import { timelineEnd, timelineStart } from '../../../src/trace/timeline.ts';

const shape = { rows: 10, keyRows: 100, decodeRows: 10, decodeKeys: 100, logitRows: 10 };

function eventsOf(timeline: StepTimeline) {
  const { traceEvents } = JSON.parse(timelineStart(['a']) + timeline.take() + timelineEnd) as {
    traceEvents: { ph: string; name: string; ts: number; dur: number; args: { keyRows: number } }[];
  };
  return traceEvents.filter(({ ph }) => ph === 'X');
}

describe('a timeline of steps', () => {
  it('names the kind of each step, and counts its keys through a run of equal steps', () => {
    const timeline = new StepTimeline({ from: 0, to: 1000 }, 10);
    timeline.addSteps(0, 0, { ...shape, decodeRows: 0 }, [50]);
    timeline.addSteps(0, 50, { ...shape, decodeRows: 4 }, [60]);
    timeline.addSteps(0, 110, shape, [7, 8, 9]);
    expect(eventsOf(timeline).map(({ name, ts, dur, args }) => [name, ts, dur, args.keyRows])).toEqual([
      ['prefill', 0, 50, 100],
      ['prefill and decode', 50, 60, 100],
      ['decode', 110, 7, 100],
      ['decode', 117, 8, 110],
      ['decode', 125, 9, 120],
    ]);
    expect(timeline.take()).toBe('');
  });

  it('shows steps that overlap its window, and counts those beyond the maximum', () => {
    const timeline = new StepTimeline({ from: 100, to: 200 }, 3);
    timeline.addSteps(0, 80, shape, [10, 10, 20, 20, 20, 20, 20, 20]);
    timeline.addSteps(0, 250, shape, [10]);
    expect(eventsOf(timeline).map(({ ts }) => ts)).toEqual([100, 120, 140]);
    expect(timeline.leftOut).toBe(2);
  });
});
