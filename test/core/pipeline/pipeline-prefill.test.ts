// Groups that compute prompts together, whose messages come in any order, late, twice, or never: nothing is lost, answered twice or kept.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { HandOffWorld } from '../transfer/hand-off-world.ts';

const prefills = 3;
const request = fc.record({
  input: fc.integer({ min: 1, max: 250 }),
  output: fc.integer({ min: 2, max: 12 }),
  // Of one: it prefills alone.
  members: fc.shuffledSubarray([0, 1, 2], { minLength: 1 }),
});
const moves = fc.array(fc.record({ choice: fc.nat(1_000), doubled: fc.boolean(), cancel: fc.nat(60) }), {
  minLength: 200,
  maxLength: 400,
});
const nothing = Array.from({ length: prefills + 2 }, () => 0);

/** By the one where it began, and once more by the one that decodes: the conductor hears the first of the two. */
const told = ['started', 'started', 'tokens', 'finished'];

test('messages out of order, late or doubled: every request is answered once, and everything is free in the end', () => {
  let grouped = 0;
  let alone = 0;
  const ahead = { begun: 0, inVain: 0 };
  fc.assert(
    fc.property(
      fc.array(request, { minLength: 1, maxLength: 12 }),
      moves,
      fc.boolean(),
      fc.constantFrom(260, 1_000),
      (requests, history, layerWise, receiveTokens) => {
        const world = new HandOffWorld(layerWise, receiveTokens, prefills);
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
          const heard = world.heard.get(id) ?? [];
          expect(heard.filter((kind) => kind === 'finished').length).toBeLessThanOrEqual(1);
          if (cancelled.has(id)) continue;
          expect(heard).toEqual(told);
          const members = requests[i]?.members.length ?? 0;
          const streamed = world.streamed.get(id) ?? 0;
          // Every member sends its part of every token; when a member was short of memory, the first sends all.
          expect([trace.inputTokens, trace.inputTokens * members]).toContain(streamed);
          if (members > 1 && streamed === trace.inputTokens) alone++;
          if (members > 1 && streamed > trace.inputTokens) grouped++;
        }
      },
    ),
    { numRuns: 120, endOnFailure: true },
  );
  expect(grouped).toBeGreaterThan(100);
  expect(alone).toBeGreaterThan(10);
  // Steps began before their rows had come; some of these did in time.
  expect(ahead.inVain).toBeGreaterThan(100);
  expect(ahead.begun - ahead.inVain).toBeGreaterThan(100);
});

test('lost messages keep their requests waiting, and a cancel at every instance frees everything', () => {
  fc.assert(
    fc.property(fc.array(request, { minLength: 1, maxLength: 8 }), moves, (requests, history) => {
      const world = new HandOffWorld(true, 400, prefills);
      for (const { input, output, members } of requests) world.submit(input, output, members);
      for (const { choice, cancel } of history) world.advance(choice, false, cancel === 0);
      world.finish();
      for (const { id } of world.requests) world.cancel(id);
      world.finish();
      expect(world.pagesUsed()).toEqual(nothing);
      for (const heard of world.heard.values())
        expect(heard.filter((kind) => kind === 'finished').length).toBeLessThanOrEqual(1);
    }),
    { numRuns: 60 },
  );
});

test.each([
  {
    when: 'when it has done the one before and the member before it this one',
    tellsAhead: false,
    steps: [[0], [0, 1], [0, 1], [1]],
  },
  {
    when: 'as soon as it has done the one before, where it hears that it comes',
    tellsAhead: true,
    steps: [
      [0, 1],
      [0, 1],
      [0, 1],
    ],
  },
])('a member begins a chunk $when', ({ tellsAhead, steps }) => {
  const world = new HandOffWorld(true, 1_000, prefills, tellsAhead);
  world.submit(96, 2, [0, 1]);
  const ran: number[][] = [];
  for (let i = 0; i < 1_000 && world.messages.length + world.steps.size > 0; i++) {
    // Messages first, so that every step that could run does.
    while (world.messages.length > 0) world.advance(0, false, false);
    ran.push([...world.steps.keys()].sort());
    const running = world.steps.size;
    for (let n = 0; n < running; n++) world.advance(world.messages.length, false, false);
  }
  expect(ran.filter((instances) => instances.some((i) => i < prefills))).toEqual(steps);
  expect(world.heard.get('0')).toEqual(told);
});

test('no pipeline begins a chunk under backpressure; other members and requests continue', () => {
  const world = new HandOffWorld(true, 1_000, 2);
  const ended = (id: string) => world.heard.get(id)?.includes('finished');
  world.full.add(0);
  world.begun.add('1');
  // Of the first the full one is the first member, and of the second, of which it had begun a chunk; of the third the last; the fourth it computes alone.
  world.submit(200, 3, [0, 1]);
  for (const members of [[0, 1], [1, 0], []]) world.submit(70, 3, members);
  world.finish();
  expect(['0', '1', '2', '3'].map(ended)).toEqual([false, true, true, true]);
  world.full.clear();
  world.tell(0, { kind: 'wake' });
  world.finish();
  expect(world.heard.get('0')).toEqual(told);
  expect(world.pagesUsed()).toEqual([0, 0, 0, 0]);
});
