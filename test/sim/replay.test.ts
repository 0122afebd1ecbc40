// What a replay takes from a recording: message delays, and steps with the gaps between them.
import { expect, it } from 'vitest';
import { LinearCost } from '../../src/core/cost/linear-cost.ts';
import { RecordedSteps } from '../../src/core/cost/recorded-steps.ts';
import { compareReplay } from '../../src/sim/replay/comparison.ts';
import { messageDelays } from '../../src/sim/replay/message-delay.ts';
import { recordedTimes } from '../../src/sim/replay/message-times.ts';
import { withGaps } from '../../src/sim/replay/step-times.ts';
import type { RequestRecord } from '../../src/sim/report/request-recorder.ts';
import type { RecordedRequest, TimedRecordedStep } from '../../src/trace/recording/reader.ts';

const shape = { rows: 1, keyRows: 1, decodeRows: 1, decodeKeys: 1, logitRows: 1 };

function step(startedUs: number, us: number, deliveredUs?: number): TimedRecordedStep {
  return { startedUs, us, shape, deliveredUs };
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
  expect(messageDelays([idle, busy], steps)).toEqual({ toInstanceUs: 300, deliveryUs: 150, handOffUs: undefined });
  expect(messageDelays([], [])).toEqual({ toInstanceUs: 0, deliveryUs: 0, handOffUs: undefined });
});

it('measures a hand-off from the end of the prefill to the first step of an idle decode instance', () => {
  const steps = [[step(1_000, 500)], [step(200, 100), step(1_900, 50)]];
  const handedOff = request(700, 2, { decodeInstance: 1, prefilledMs: 0.95, decodeStepMs: 1.2 });
  expect(messageDelays([handedOff], steps).handOffUs).toBe(400);
  const [prefill, decode] = steps;
  expect(messageDelays([handedOff], [prefill, [...decode.slice(0, 1), step(1_450, 300), decode[1]]]).handOffUs).toBe(
    undefined,
  );
});

it('takes a message to arrive when its recorded effect began at an idle instance, and before it was planned at a busy one', () => {
  const delays = { toInstanceUs: 300, deliveryUs: 50, handOffUs: 400 };
  const steps = [[step(5_000, 500)], [step(8_000, 50)]];
  const late = request(700, 9, { firstStepMs: 4.3, decodeInstance: 1, decodeStepMs: 7.3 });
  const { toInstanceUs, handOffUs } = recordedTimes([late], steps, [], delays);
  expect([toInstanceUs(700, 0, '0'), toInstanceUs(700, 1, '0'), toInstanceUs(700, 0, undefined)]).toEqual([
    4_300, 300, 300,
  ]);
  expect([handOffUs?.(5_500, 1, '0'), handOffUs?.(5_500, 0, '0')]).toEqual([2_500, 400]);
  const received = { ...late, recorded: { ...late.recorded, decodeReceivedMs: 7.1 } };
  expect(recordedTimes([received], steps, [], delays).handOffUs?.(5_500, 1, '0')).toBe(2_300);
  const [prefill, decode] = steps;
  const busy = [
    [step(900, 4_100), ...prefill],
    [step(5_800, 2_200), ...decode],
  ];
  const behind = recordedTimes([late], busy, [], delays);
  // It came after 1 ms or after 4 ms: not before the step without its rows, nor after that step.
  expect([behind.toInstanceUs(700, 0, '0'), behind.toInstanceUs(4_900, 0, '0')]).toEqual([300, 99]);
  expect([behind.handOffUs?.(5_300, 1, '0'), behind.handOffUs?.(7_000, 1, '0')]).toEqual([501, 400]);
  expect(behind.handOffUs?.(7_900, 1, '0')).toBe(99);
  const full = { ...step(900, 4_100), shape: { ...shape, rows: 65 } };
  const prompts = [[full, ...prefill], decode];
  expect(recordedTimes([late], prompts, [], delays).toInstanceUs(700, 0, '0')).toBe(300);
});

it('delivers a prefix when it was there, and one that was missing after its instance has given it up', () => {
  const delays = { toInstanceUs: 300, deliveryUs: 50, handOffUs: undefined };
  const [there, missing] = [{ prefixMs: 2 }, { prefixMs: 2, prefixMissing: true }].map((own) => request(700, 9, own));
  const { prefixUs } = recordedTimes([there, missing, request(700, 9)], [[step(900, 100)]], [], delays);
  expect(prefixUs?.(1_000, 0, '0')).toBe(1_700);
  expect(prefixUs?.(1_000, 0, '1')).toBeGreaterThan(1_000_000);
  expect([prefixUs?.(1_000, 1, '0'), prefixUs?.(1_000, 0, '2')]).toEqual([undefined, undefined]);
});

it('announces a prefix before the step that waited for it alone, and delivers the request when the fetch began', () => {
  const delays = { toInstanceUs: 300, deliveryUs: 50, handOffUs: undefined };
  const own = { prefixStartMs: 0.5, firstStepMs: 1.3 };
  // The fetch ended at 2,700 us: after the step that began at 2,000 us and before the end of the other one.
  const [ahead, behind] = [own, { ...own, firstStepMs: 2.1 }].map((each) => request(700, 9, { prefixMs: 2, ...each }));
  const steps = [[step(2_000, 600), step(2_800, 600)]];
  const { prefixUs, prefixBeginUs, toInstanceUs } = recordedTimes([ahead, behind], steps, [], delays);
  expect([prefixBeginUs?.(1_500, 0, '0'), prefixUs?.(1_500, 0, '0')]).toEqual([500, 501]);
  expect(prefixBeginUs?.(1_500, 0, '1')).toBeGreaterThan(1_000_000);
  expect([prefixUs?.(1_500, 0, '1'), prefixBeginUs?.(1_500, 1, '0')]).toEqual([1_200, undefined]);
  expect(toInstanceUs(700, 0, '0')).toBe(500);
  const waited = request(700, 9, { receivedMs: 0.2, firstStepMs: 1.3 });
  expect(recordedTimes([waited], steps, [], delays).toInstanceUs(700, 0, '0')).toBe(200);
});

it('delivers the first tokens of a request when the gateway handled them, later than the outputs of the step', () => {
  const own = [step(1_000, 500, 4_000)];
  const times = new LinearCost(
    { stepUs: 1, rowUs: 0, keyUs: 0, decodeRowUs: 0, logitRowUs: 0 },
    { layers: 1, kvBytesPerToken: 1, kvCapacityTokens: 1, activationBytesPerToken: 1 },
  );
  const recorded = new RecordedSteps(own, times, () => 1_000);
  const delays = { toInstanceUs: 300, deliveryUs: 50, handOffUs: undefined };
  const { receivedUs } = recordedTimes([request(700, 9, { firstTokenMs: 6 })], [own], [recorded], delays);
  recorded.stepUs(shape);
  const turn = { stepEnded: true, started: undefined };
  expect(receivedUs(1_500, 0, turn)).toBe(4_000);
  expect(receivedUs(1_500, 0, { ...turn, firstTokens: '0' })).toBe(6_700);
  expect(receivedUs(1_500, 0, { ...turn, stepEnded: false, firstTokens: '0' })).toBe(6_700);
});

it('delivers the outputs of a recorded step when the gateway had them, and those of others after a drawn delay', () => {
  const own = [step(1_000, 500, 4_000), step(1_500, 500, 2_900)];
  let nowUs = 1_000;
  const times = new LinearCost(
    { stepUs: 1, rowUs: 0, keyUs: 0, decodeRowUs: 0, logitRowUs: 0 },
    { layers: 1, kvBytesPerToken: 1, kvCapacityTokens: 1, activationBytesPerToken: 1 },
  );
  const recorded = new RecordedSteps(own, times, () => nowUs);
  const { receivedUs } = recordedTimes([request(700, 9, { startedMs: 0.4 })], [own], [recorded], {
    ...{ toInstanceUs: 300, deliveryUs: 50, handOffUs: undefined },
  });
  expect(recorded.stepUs(shape)).toBe(500);
  expect(receivedUs(1_000, 0, { stepEnded: false, started: '0' })).toBe(1_100);
  nowUs = 1_500;
  expect(receivedUs(nowUs, 0, { stepEnded: true, started: undefined })).toBe(4_000);
  expect(recorded.stepUs({ ...shape, rows: 9 })).toBeGreaterThan(0);
  nowUs = 1_600;
  expect(receivedUs(nowUs, 0, { stepEnded: true, started: undefined }) - nowUs).toSatisfy(
    (us) => us === 2_500 || us === 900,
  );
  expect(receivedUs(nowUs, 0, { stepEnded: false, started: undefined })).toBe(1_650);
});

it('counts the gap before a step as a part of it while a request was there, and no wait for requests', () => {
  const steps = [step(1_000, 500), step(1_800, 200), step(9_000, 100)];
  const served = request(500, 2);
  const all = withGaps(steps, 0, [served, request(8_900, 1)]);
  const times = all.map(({ startedUs, us, gapUs = 0 }) => [startedUs, us, gapUs]);
  expect(times).toEqual([
    [1_000, 500, 0],
    [1_500, 500, 300],
    [9_000, 100, 0],
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
