// Rates of links from the counters of one messenger: a sample belongs to one link alone.
import { expect, it } from 'vitest';
import { LinkMeter } from '../../../src/core/cost/links/link-meter.ts';
import { LinkRates } from '../../../src/runtime/transfer/link-rates.ts';

const megabyte = 1_000_000;

function world() {
  const counts = { pages: 0, bytes: 0, earlyBytes: 0, streams: 0, firstPages: 0, copySeconds: 0, faults: 0 };
  const meter = new LinkMeter();
  const rates = new LinkRates({ counts }, meter);
  const copy = (bytes: number, seconds: number) => {
    counts.bytes += bytes;
    counts.copySeconds += seconds;
  };
  return { meter, rates, copy };
}

it('counts overlapping streams to one instance as one sample', () => {
  const { meter, rates, copy } = world();
  rates.add(1, 'a', megabyte);
  rates.add(1, 'b', megabyte);
  rates.add(1, 'a', megabyte);
  copy(3 * megabyte, 0.001);
  rates.ended(0, 'a');
  expect(meter.reports(0)).toEqual([]);
  rates.ended(0, 'b');
  expect(meter.reports(0)).toEqual([{ peer: 1, bytesPerSecond: 3e9 }]);
});

it('has no sample where streams went to several instances, were stopped, or others used the messenger', () => {
  const { meter, rates, copy } = world();
  rates.add(1, 'a', megabyte);
  rates.add(2, 'b', megabyte);
  copy(2 * megabyte, 0.001);
  rates.ended(0, 'a');
  rates.ended(0, 'b');
  rates.add(1, 'stopped', megabyte);
  copy(megabyte / 2, 0.001);
  rates.ended(0, 'stopped');
  rates.add(1, 'beside another', megabyte);
  copy(5 * megabyte, 0.001);
  rates.ended(0, 'beside another');
  rates.ended(0, 'unknown');
  expect(meter.reports(0)).toEqual([]);
});
