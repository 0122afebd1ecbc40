// Pipeline prefill with reordered, late, duplicate and lost messages: no request is lost or answered twice, and no page leaks.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { HandOffWorld } from '../transfer/hand-off-world.ts';

const prefills = 3;
const request = fc.record({
  input: fc.integer({ min: 1, max: 250 }),
  output: fc.integer({ min: 2, max: 12 }),
  // A single member prefills alone.
  members: fc.shuffledSubarray([0, 1, 2], { minLength: 1 }),
});
const moves = fc.array(fc.record({ choice: fc.nat(1_000), doubled: fc.boolean(), cancel: fc.nat(60) }), {
  minLength: 200,
  maxLength: 400,
});
const nothing = Array.from({ length: prefills + 2 }, () => 0);

/** Both a member and the decode instance report `started`; the conductor uses the first. */
const expectedEvents = ['started', 'started', 'tokens', 'finished'];

test('reordered, late or duplicate messages: every request is answered once, and all pages are free at the end', () => {
  let grouped = 0;
  let alone = 0;
  const ahead = { begun: 0, inVain: 0 };
  fc.assert(
    fc.property(
      fc.array(request, { minLength: 1, maxLength: 12 }),
      moves,
      fc.boolean(),
      fc.constantFrom(260, 1_000),
      fc.boolean(),
      (requests, history, layerWise, receiveTokens, borrows) => {
        const world = new HandOffWorld(layerWise, receiveTokens, prefills, true, borrows);
        const cancelled = new Set<string>();
        for (const { input, output, members } of requests) world.submit(input, output, members);
        for (const { choice, doubled, cancel } of history) {
          if (cancel < requests.length && choice % 10 === 0 && world.isSubmitted(String(cancel))) {
            cancelled.add(String(cancel));
            world.cancel(String(cancel));
          }
          world.advance(choice, doubled, false);
        }
        world.finish();
        expect(world.pagesUsed()).toEqual(nothing);
        ahead.begun += world.ahead.begun;
        ahead.inVain += world.ahead.inVain;
        for (const [i, { id, trace }] of world.requests.entries()) {
          const received = world.received.get(id) ?? [];
          expect(received.filter((kind) => kind === 'finished').length).toBeLessThanOrEqual(1);
          if (cancelled.has(id)) continue;
          expect(received).toEqual(expectedEvents);
          const members = requests[i]?.members.length ?? 0;
          const streamed = world.streamed.get(id) ?? 0;
          // Every member sends its layers of every token. If a member is short of memory, the first computes and sends all.
          expect([trace.inputTokens, trace.inputTokens * members]).toContain(streamed);
          if (members > 1 && streamed === trace.inputTokens) alone++;
          if (members > 1 && streamed > trace.inputTokens) grouped++;
        }
      },
    ),
    { numRuns: 300, endOnFailure: true },
  );
  expect(grouped).toBeGreaterThan(100);
  expect(alone).toBeGreaterThan(10);
  // Steps began before their activations arrived: some arrived in time, some did not.
  expect(ahead.inVain).toBeGreaterThan(100);
  expect(ahead.begun - ahead.inVain).toBeGreaterThan(100);
});

test('requests with lost messages wait, and a cancel at every instance frees all pages', () => {
  fc.assert(
    fc.property(
      fc.array(request, { minLength: 1, maxLength: 8 }),
      moves,
      fc.boolean(),
      (requests, history, borrows) => {
        const world = new HandOffWorld(true, 400, prefills, true, borrows);
        for (const { input, output, members } of requests) world.submit(input, output, members);
        for (const { choice, cancel } of history) world.advance(choice, false, cancel === 0);
        world.finish();
        for (const { id } of world.requests) world.cancel(id);
        world.finish();
        expect(world.pagesUsed()).toEqual(nothing);
        for (const received of world.received.values())
          expect(received.filter((kind) => kind === 'finished').length).toBeLessThanOrEqual(1);
      },
    ),
    { numRuns: 60 },
  );
});

test.each([
  {
    when: 'after the previous chunk, once the previous member has computed this one',
    announcesChunks: false,
    steps: [[0], [0, 1], [0, 1], [1]],
  },
  {
    when: 'directly after the previous chunk, if this one is announced',
    announcesChunks: true,
    steps: [
      [0, 1],
      [0, 1],
      [0, 1],
    ],
  },
])('a member begins a chunk $when', ({ announcesChunks, steps }) => {
  const world = new HandOffWorld(true, 1_000, prefills, announcesChunks);
  world.submit(96, 2, [0, 1]);
  const ran: number[][] = [];
  for (let i = 0; i < 1_000 && world.messages.length + world.steps.size > 0; i++) {
    // Messages first, so that every possible step runs.
    while (world.messages.length > 0) world.advance(0, false, false);
    ran.push([...world.steps.keys()].sort());
    const running = world.steps.size;
    for (let n = 0; n < running; n++) world.advance(world.messages.length, false, false);
  }
  expect(ran.filter((instances) => instances.some((i) => i < prefills))).toEqual(steps);
  expect(world.received.get('0')).toEqual(expectedEvents);
});

test('no pipeline begins a chunk under backpressure; other members and requests continue', () => {
  const world = new HandOffWorld(true, 1_000, 2);
  const ended = (id: string) => world.received.get(id)?.includes('finished');
  world.backpressured.add(0);
  world.begunRequests.add('1');
  // Instance 0 has backpressure. It is the first member for requests 0 and 1, and had begun a chunk of request 1. It is the last member
  // for request 2, and computes request 3 alone.
  world.submit(200, 3, [0, 1]);
  for (const members of [[0, 1], [1, 0], []]) world.submit(70, 3, members);
  world.finish();
  expect(['0', '1', '2', '3'].map(ended)).toEqual([false, true, true, true]);
  world.backpressured.clear();
  world.deliver(0, { kind: 'wake' });
  world.finish();
  expect(world.received.get('0')).toEqual(expectedEvents);
  expect(world.pagesUsed()).toEqual([0, 0, 0, 0]);
});
