// What a replay takes from a recording: message delays, and steps with the gaps between them.
import { expect, it } from 'vitest';
import { compareReplay } from '../../src/sim/replay/comparison.ts';
import { messageDelays } from '../../src/sim/replay/message-delay.ts';
import { withGaps } from '../../src/sim/replay/step-times.ts';
import type { RequestRecord } from '../../src/sim/report/request-recorder.ts';
import type { RecordedRequest, TimedRecordedStep } from '../../src/trace/recording/reader.ts';

const shape = { rows: 1, keyRows: 1, decodeRows: 1, decodeKeys: 1, logitRows: 1 };

function step(startedUs: number, us: number): TimedRecordedStep {
  return { startedUs, us, shape };
}

function request(arrivalUs: number, endMs: number, own: object = {}): RecordedRequest {
  const lengths = { index: 0, arrivalUs, inputTokens: 8, outputTokens: 2, blocks: new Int32Array(0) };
  const placed = { instance: 0, decodeInstance: 0, attempts: 1, maxTokens: 2 };
  return { request: lengths, recorded: { outcome: 'finished', ...placed, endMs, ...own } };
}

it('measures delays at idle instances, and from the end of a prefill to its report', () => {
  const steps = [[step(1_000, 500), step(9_000, 400), step(9_500, 100)]];
  const idle = request(700, 2, { prefilledMs: 0.95 });
  const busy = request(9_100, 2, { prefilledMs: 0.6 });
  expect(messageDelays([idle, busy], steps)).toEqual({ toInstanceUs: 300, deliveryUs: 150 });
  expect(messageDelays([], [])).toEqual({ toInstanceUs: 0, deliveryUs: 0 });
});

it('counts the gap before a step as a part of it while a request was there, and no wait for requests', () => {
  const steps = [step(1_000, 500), step(1_800, 200), step(9_000, 100)];
  const served = request(500, 2);
  const times = withGaps(steps, 0, [served, request(8_900, 1)]).map(({ startedUs, us }) => [startedUs, us]);
  expect(times).toEqual([
    [1_000, 500],
    [1_500, 500],
    [9_000, 100],
  ]);
  expect(withGaps(steps, 1, [served])).toEqual(steps);
});

it('takes a request to be at the instance that decodes from its hand-off on', () => {
  const steps = [step(1_000, 500), step(1_800, 200)];
  const handedOff = (prefilledMs: number) => request(0, 3, { decodeInstance: 1, prefilledMs });
  expect(withGaps(steps, 1, [handedOff(1)])[1]).toMatchObject({ startedUs: 1_500, us: 500 });
  expect(withGaps(steps, 1, [handedOff(1.7)])[1]).toEqual(steps[1]);
  expect(withGaps(steps, 0, [handedOff(2)])[1]).toMatchObject({ startedUs: 1_500, us: 500 });
});

it('compares times of the requests that completed in both', () => {
  const recorded = [10, 20, 30].map((firstTokenMs, index) => {
    const { request: sent, recorded } = request(0, 40, {
      firstTokenMs,
      outcome: index === 1 ? 'cancelled' : 'finished',
    });
    return { request: { ...sent, index }, recorded };
  });
  const simulated = [15, 1, 1].map((ttftMs, index) => ({
    ...{ index, ttftMs, outcome: index === 2 ? 'ttft' : 'completed', instance: 0, decodeInstance: 0 },
    ...{ cachedTokens: 0, promptTokens: 8 },
  }));
  const { ttftMs, ttftRatio, completed } = compareReplay(recorded, simulated as unknown as readonly RequestRecord[]);
  expect([ttftMs.recorded.p99, ttftMs.simulated.p99, ttftRatio]).toEqual([10, 15, 1.5]);
  expect(completed).toEqual({ recorded: 2, simulated: 2 });
});
