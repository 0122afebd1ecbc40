// The replacement of lost attention workers: events of losses and returns, and attempts that are repeated.
import { describe, expect, test } from 'vitest';
import { LiveAttentionWorkers } from '../../../src/runtime/attention-workers/live-attention-workers.ts';
import { FakeWorker, runReplacements } from './random-replacements.ts';

function setup(): { workers: FakeWorker[]; live: LiveAttentionWorkers; lines: string[] } {
  const workers = [new FakeWorker(1), new FakeWorker(2)];
  const lines: string[] = [];
  return { workers, lines, live: new LiveAttentionWorkers(workers, (line) => lines.push(line)) };
}

describe('attention workers of a live instance', () => {
  test('a broken one is reported lost, replaced at once, and has a new link', () => {
    const { workers, live } = setup();
    expect(live.poll(0)).toEqual([]);
    workers[1].isBroken = true;
    expect(live.poll(1)).toEqual([
      { kind: 'attentionWorkerLost', worker: 1 },
      { kind: 'attentionWorkerReady', worker: 1 },
    ]);
    expect(live.handles).toEqual([Int32Array.of(1, 9), Int32Array.of(10, 90)]);
    expect([live.poll(2), live.nextUs]).toEqual([[], Number.POSITIVE_INFINITY]);
  });

  test('a failed replacement is tried again after a second, however often the loop polls', () => {
    const { workers, live, lines } = setup();
    workers[0].isBroken = true;
    workers[0].failures = 2;
    expect(live.poll(0)).toEqual([{ kind: 'attentionWorkerLost', worker: 0 }]);
    expect([live.nextUs, live.handles[0]]).toEqual([1_000_000, Int32Array.of(0, 2)]);
    for (let us = 100_000; us < 1_000_000; us += 100_000) expect(live.poll(us)).toEqual([]);
    expect([live.poll(1_000_000), live.nextUs]).toEqual([[], 2_000_000]);
    expect(live.poll(2_000_000)).toEqual([{ kind: 'attentionWorkerReady', worker: 0 }]);
    expect(lines).toEqual([
      'Attention worker 1 is lost and not replaced yet: there is no memory',
      'Attention worker 1 was lost and is replaced: its sequences are computed again',
    ]);
  });

  test('an attempt that lasts is polled again, without a wait, and the reason of its failure is logged once', () => {
    const { workers, live, lines } = setup();
    Object.assign(workers[0], { isBroken: true, polls: 2, failures: 2 });
    expect(live.poll(0)).toEqual([{ kind: 'attentionWorkerLost', worker: 0 }]);
    expect([live.nextUs, lines]).toEqual([10_000, []]);
    live.poll(10_000);
    live.poll(20_000);
    expect([live.nextUs, lines.length]).toEqual([1_020_000, 1]);
    live.poll(1_020_000);
    expect(live.poll(2_020_000)).toEqual([{ kind: 'attentionWorkerReady', worker: 0 }]);
    expect(lines).toHaveLength(2);
  });

  test('a new worker is reported once it has its pages, and one that is lost before that is no further loss', () => {
    const { workers, live } = setup();
    let isFilled = false;
    live.onReplaced = () => () => isFilled;
    workers[0].isBroken = true;
    expect(live.poll(0)).toEqual([{ kind: 'attentionWorkerLost', worker: 0 }]);
    expect([live.poll(10_000), live.nextUs]).toEqual([[], 20_000]);
    workers[0].isBroken = true;
    expect(live.poll(20_000)).toEqual([]);
    isFilled = true;
    expect(live.poll(30_000)).toEqual([{ kind: 'attentionWorkerReady', worker: 0 }]);
    expect(live.nextUs).toBe(Number.POSITIVE_INFINITY);
  });

  test('the loss of another one does not delay the attempts', () => {
    const { workers, live } = setup();
    workers[0].isBroken = true;
    workers[0].failures = 1;
    live.poll(0);
    workers[1].isBroken = true;
    expect(live.poll(500_000).map(({ kind }) => kind)).toEqual(['attentionWorkerLost', 'attentionWorkerReady']);
    expect(live.poll(1_000_000)).toEqual([{ kind: 'attentionWorkerReady', worker: 0 }]);
  });

  test('a shard moves to another worker after the time, and both are lost with that worker', () => {
    const workers = [new FakeWorker(1), new FakeWorker(2)];
    const live = new LiveAttentionWorkers(workers, () => {}, { afterUs: 2_500_000, pages: 101 });
    const events = (us: number) => live.poll(us).map((event) => JSON.stringify(event));
    const lost = (worker: number) => JSON.stringify({ kind: 'attentionWorkerLost', worker });
    const ready = (worker: number) => JSON.stringify({ kind: 'attentionWorkerReady', worker, pages: 50 });
    workers[1].isBroken = true;
    workers[1].isDown = true;
    expect(events(0)).toEqual([lost(1)]);
    expect([events(1_000_000), events(2_000_000)]).toEqual([[], []]);
    expect(events(3_000_000)).toEqual([ready(1)]);
    expect(workers[1].home).toEqual({ worker: 0, firstPage: 50, pages: 50 });
    workers[0].isBroken = true;
    expect(events(4_000_000)).toEqual([lost(0), ready(0), lost(1)]);
    expect([events(5_000_000), events(6_000_000)]).toEqual([[], []]);
    expect(events(7_000_000)).toEqual([ready(1)]);
    // Its process exists again: the shard returns there at the next loss.
    workers[1].isDown = false;
    workers[1].isBroken = true;
    expect(events(8_000_000)).toEqual([lost(0), ready(0), lost(1), ready(1).replace('50', '101')]);
  });

  test('in random histories each loss and each replacement is reported once, and steps use the links of that moment', () => {
    for (let seed = 1; seed <= 100; seed++) runReplacements(LiveAttentionWorkers, seed);
  });

  test('snapshots have the traffic with each worker, waits by replica, and pages that workers of this process pulled', () => {
    const [local, remote] = [new FakeWorker(1), new FakeWorker(2)];
    Object.assign(local, { pulled: { pulledPages: 3, pulledBytes: 300 }, counts: { ...local.counts, waitSeconds: 4 } });
    const live = new LiveAttentionWorkers([local, remote], () => {}, undefined, 2);
    const machine = { ready: true, losses: 1 };
    expect(live.withCounts([machine, machine])).toEqual([
      { ...machine, ...local.counts, waitSeconds: 2, pulledPages: 3, pulledBytes: 300 },
      { ...machine, ...remote.counts },
    ]);
  });
});
