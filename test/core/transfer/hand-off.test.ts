// Hand-offs with reordered, late, duplicate and lost messages: no request is lost or answered twice, and no page leaks.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { HandOffWorld } from './hand-off-world.ts';

const request = fc.record({ input: fc.integer({ min: 1, max: 150 }), output: fc.integer({ min: 2, max: 12 }) });
const moves = fc.array(fc.record({ choice: fc.nat(1_000), doubled: fc.boolean(), cancel: fc.nat(60) }), {
  minLength: 200,
  maxLength: 400,
});

/** Both the prefill and the decode instance report `started`; the conductor uses the first. */
const expectedEvents = ['started', 'started', 'tokens', 'finished'];

test('reordered, late or duplicate messages: every request is answered once, and all pages are free at the end', () => {
  let whole = 0;
  fc.assert(
    fc.property(
      fc.array(request, { minLength: 1, maxLength: 12 }),
      moves,
      fc.boolean(),
      fc.constantFrom(160, 1_000),
      (requests, history, layerWise, receiveTokens) => {
        const world = new HandOffWorld(layerWise, receiveTokens);
        const cancelled = new Set<string>();
        for (const { input, output } of requests) world.submit(input, output);
        for (const { choice, doubled, cancel } of history) {
          if (cancel < requests.length && choice % 10 === 0) {
            cancelled.add(String(cancel));
            world.cancel(String(cancel));
          }
          world.advance(choice, doubled, false);
        }
        world.finish();
        expect(world.pagesUsed()).toEqual([0, 0, 0, 0]);
        for (const { id, trace } of world.requests) {
          const received = world.received.get(id) ?? [];
          expect(received.filter((kind) => kind === 'finished').length).toBeLessThanOrEqual(1);
          if (cancelled.has(id)) continue;
          expect(received).toEqual(expectedEvents);
          expect(world.streamed.get(id)).toBe(trace.inputTokens);
          whole++;
        }
      },
    ),
    { numRuns: 80, endOnFailure: true },
  );
  expect(whole).toBeGreaterThan(100);
});

test('requests with lost messages wait, and a cancel at every instance frees all pages', () => {
  fc.assert(
    fc.property(fc.array(request, { minLength: 1, maxLength: 8 }), moves, (requests, history) => {
      const world = new HandOffWorld(true, 400);
      for (const { input, output } of requests) world.submit(input, output);
      for (const { choice, cancel } of history) world.advance(choice, false, cancel === 0);
      world.finish();
      for (const { id } of world.requests) world.cancel(id);
      world.finish();
      expect(world.pagesUsed()).toEqual([0, 0, 0, 0]);
      for (const received of world.received.values()) {
        expect(received.filter((kind) => kind === 'finished').length).toBeLessThanOrEqual(1);
      }
    }),
    { numRuns: 60 },
  );
});

test('a prompt that exceeds the receive buffer is refused, and both instances release it', () => {
  const world = new HandOffWorld(true, 40);
  world.submit(100, 5);
  world.finish();
  expect(world.received.get('0')).toEqual(['started', 'failed']);
  expect(world.pagesUsed()).toEqual([0, 0, 0, 0]);
});
