// The order of events, and percentiles of histograms.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { EventQueue } from '../../../src/sim/engine/event-queue.ts';
import { Histogram } from '../../../src/sim/report/histogram.ts';

test('events run in order of time, then timers by creation, actions by insertion, and the background last', () => {
  const kinds = ['timer 0', 'timer 1', 'action', 'background timer', 'background action'] as const;
  const event = fc.tuple(fc.nat(20), fc.constantFrom(...kinds));
  fc.assert(
    fc.property(fc.array(event, { maxLength: 200 }), fc.array(fc.boolean(), { maxLength: 200 }), (events, runs) => {
      const queue = new EventQueue();
      const ran: (readonly [number, string])[] = [];
      const log = (name: string) => () => ran.push([queue.nowUs, name]);
      const timers = [queue.timer(log('timer 0')), queue.timer(log('timer 1'))];
      const background = queue.backgroundTimer(log('background timer'));
      const model: (readonly [number, number, number, string])[] = [];
      const first = () => model.sort(([a, i, k], [b, j, l]) => a - b || i - j || k - l)[0];
      const run = () => {
        const [timeUs, , , name] = first() ?? [];
        expect(queue.nextUs).toBe(timeUs);
        const nowUs = Math.max(queue.nowUs, timeUs ?? 0);
        queue.runNext();
        model.shift();
        expect(ran.at(-1)).toEqual([nowUs, name]);
      };
      events.forEach(([delayUs, kind], i) => {
        const timeUs = queue.nowUs + delayUs;
        const name = kind.endsWith('action') ? `${kind} ${i}` : kind;
        if (kind === 'action') queue.at(timeUs, log(name));
        else if (kind === 'background action') queue.afterInBackground(delayUs, log(name));
        else if (kind === 'background timer') background.schedule(timeUs);
        else timers[kind === 'timer 0' ? 0 : 1].schedule(timeUs);
        model.push([timeUs, kinds.indexOf(kind), i, name]);
        expect(queue.isIdle).toBe(model.every(([, rank]) => rank >= 3));
        if (runs[i] === true) run();
      });
      while (model.length > 0) run();
      expect([queue.isIdle, queue.nextUs]).toEqual([true, Number.POSITIVE_INFINITY]);
    }),
  );
});

test('percentiles are within a thousandth of the exact ones; mean, count and maximum are exact', () => {
  const value = fc.oneof(fc.nat(3_000), fc.nat(2 ** 31 - 1), fc.maxSafeNat());
  fc.assert(
    fc.property(
      fc.array(value, { minLength: 1, maxLength: 100 }),
      fc.double({ min: 0.01, max: 1, noNaN: true }),
      (values, p) => {
        const histogram = new Histogram();
        for (const one of values) histogram.add(one);
        const sorted = Float64Array.from(values).sort();
        const exact = sorted[Math.ceil(p * sorted.length) - 1];
        expect(histogram.percentile(p)).toBeGreaterThanOrEqual(exact);
        expect(histogram.percentile(p)).toBeLessThanOrEqual(exact * 1.001);
        expect([histogram.count, histogram.max]).toEqual([values.length, sorted.at(-1)]);
        expect(histogram.mean).toBeCloseTo(values.reduce((sum, one) => sum + one, 0) / values.length, 6);
      },
    ),
  );
});
