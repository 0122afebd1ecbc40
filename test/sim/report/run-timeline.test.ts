// Steps, transfers and requests as events of a timeline: names, window and maximum number.
import { describe, expect, it } from 'vitest';
import { RequestRecorder } from '../../../src/sim/report/request-recorder.ts';
import { RunTimeline } from '../../../src/sim/report/run-timeline.ts';
import { timelineEnd, timelineStart } from '../../../src/trace/timeline.ts';
import { cluster, requestOf, run } from '../small-cluster.ts';

const shape = { rows: 10, keyRows: 100, decodeRows: 10, decodeKeys: 100, logitRows: 10 };

interface TraceEvent {
  readonly ph: string;
  readonly name: string;
  readonly cat?: string;
  readonly tid: number;
  readonly ts: number;
  readonly dur: number;
  readonly args: { readonly keyRows: number };
}

function allEventsOf(timeline: RunTimeline): readonly TraceEvent[] {
  return JSON.parse(timelineStart(['a']) + timeline.take() + timelineEnd).traceEvents;
}

function eventsOf(timeline: RunTimeline) {
  return allEventsOf(timeline).filter(({ ph }) => ph === 'X');
}

describe('a timeline of steps', () => {
  it('names the kind of each step, and counts its keys through a run of equal steps', () => {
    const timeline = new RunTimeline({ from: 0, to: 1000 }, 10);
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
    const timeline = new RunTimeline({ from: 100, to: 200 }, 3);
    timeline.addSteps(0, 80, shape, [10, 10, 20, 20, 20, 20, 20, 20]);
    timeline.addSteps(0, 250, shape, [10]);
    expect(eventsOf(timeline).map(({ ts }) => ts)).toEqual([100, 120, 140]);
    expect(timeline.leftOut).toBe(2);
  });

  it('shows each request with its phases, and each hand-off with an arrow between the instances', () => {
    const timeline = new RunTimeline({ from: 0, to: 1e9 }, 1000);
    const recorder = new RequestRecorder((record) => timeline.addRequest(record));
    run([requestOf(0, 1000, 64, 5, 0), requestOf(1, 2000, 64, 5, 1)], {
      instances: cluster({ prefill: 1, decode: 1 }),
      stepListener: timeline.addSteps,
      transferListener: timeline.addTransfer,
      requestListener: recorder,
    });
    const all = allEventsOf(timeline);
    const begins = (group: string) => all.filter(({ cat, ph }) => cat === group && ph === 'b').map(({ name }) => name);
    const phases = ['queue', 'prefill', 'decode'];
    expect(begins('requests').filter((name) => !phases.includes(name))).toEqual(['request 0', 'request 1']);
    expect(begins('requests').filter((name) => name === 'prefill')).toHaveLength(2);
    expect(begins('transfers')).toEqual(['handoff 0', 'handoff 1']);
    const rowsOf = (ph: string) => all.filter((event) => event.ph === ph && event.cat === 'flow').map(({ tid }) => tid);
    expect([rowsOf('s'), rowsOf('f')]).toEqual([
      [0, 0],
      [1, 1],
    ]);
    for (const { ph, ts, tid } of all.filter(({ cat }) => cat === 'flow')) {
      const own = all.filter((event) => event.ph === 'X' && event.tid === tid);
      // An arrow begins in a prefill step, and a decode step follows its end.
      if (ph === 's') expect(own.some((step) => step.ts <= ts && ts <= step.ts + step.dur)).toBe(true);
      else expect(own.some((step) => step.ts >= ts)).toBe(true);
    }
  });
});
