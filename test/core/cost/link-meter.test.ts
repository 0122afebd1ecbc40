// Measurements of links: what counts within the last windows, and when figures become out of date.
import { expect, it } from 'vitest';
import { LinkMeter, rateBytesMin } from '../../../src/core/cost/links/link-meter.ts';

const second = 1_000_000;

it('reports the least round trip and the mean rate of recent samples', () => {
  const meter = new LinkMeter();
  for (const us of [400, 250, 900]) meter.roundTrip(0, 3, us);
  meter.transferred(second, 3, 1_000_000, 1_000);
  meter.transferred(2 * second, 3, 3_000_000, 1_000);
  meter.connected(2 * second, 3, 'tcp');
  expect(meter.reports(2 * second)).toEqual([
    { peer: 3, transport: 'tcp', roundTripUs: 250, bytesPerSecond: 2_000_000_000 },
  ]);
});

it('drops figures a minute after their last sample, and keeps the transport', () => {
  const meter = new LinkMeter();
  meter.connected(0, 1, 'shared');
  meter.roundTrip(0, 1, 50);
  meter.transferred(40 * second, 1, 1_000_000, 1_000);
  expect(meter.report(59 * second, 1)).toMatchObject({ roundTripUs: 50, bytesPerSecond: 1e9 });
  expect(meter.report(71 * second, 1)).toEqual({ peer: 1, transport: 'shared', bytesPerSecond: 1e9 });
  expect(meter.report(200 * second, 1)).toEqual({ peer: 1, transport: 'shared' });
});

it('ignores copies that are too short to measure, clocks that went back, and unknown peers', () => {
  const meter = new LinkMeter();
  meter.transferred(0, 1, rateBytesMin - 1, 10);
  meter.transferred(0, 1, 1_000_000, 0);
  meter.roundTrip(0, 1, -5);
  expect(meter.reports(0)).toEqual([]);
  meter.roundTrip(0, 1, 7);
  meter.forget(1);
  expect(meter.report(0, 1)).toEqual({ peer: 1 });
});

it('forgets the link to another process a minute after its last sample, and keeps those within the process', () => {
  const meter = new LinkMeter();
  meter.connected(0, 1, 'tcp');
  meter.connected(0, 2, 'thread');
  meter.roundTrip(20 * second, 1, 50);
  // Reading a link is no sample.
  meter.report(70 * second, 1);
  expect(meter.reports(79 * second).map(({ peer }) => peer)).toEqual([1, 2]);
  expect(meter.reports(80 * second)).toEqual([{ peer: 2, transport: 'thread' }]);
  expect(meter.report(80 * second, 1)).toEqual({ peer: 1 });
});
