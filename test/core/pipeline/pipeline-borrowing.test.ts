// Pipeline groups of instances that borrow: no member holds memory before the decode instance has granted a receive buffer.
import { expect, test } from 'vitest';
import { HandOffWorld } from '../transfer/hand-off-world.ts';

/** Pools of 20 blocks of 16 tokens. Requests decode at instance 3, then at instance 2 twice, and so on. */
const receiveTokens = 250;
const nothing = [0, 0, 0, 0];

function worldOf(): HandOffWorld {
  return new HandOffWorld(true, receiveTokens, 2, true, true);
}

function kindsOf(world: HandOffWorld): readonly string[] {
  return world.messages.map(({ event }) => (event.kind === 'peer' ? event.message.kind : event.kind));
}

/** Delivers messages in order until the condition holds. */
function advanceUntil(world: HandOffWorld, condition: () => boolean): void {
  for (let i = 0; i < 1_000 && !condition(); i++) world.advance(0, false, false);
  expect(condition()).toBe(true);
}

/** Two prompts for the same decode instance, which has memory for one: the second waits. */
function withWaiting(): HandOffWorld {
  const world = worldOf();
  // Requests 1 and 2 decode at instance 2.
  world.submit(1, 1);
  world.submit(200, 2, [0, 1]);
  world.submit(240, 2, [1, 0]);
  advanceUntil(world, () => kindsOf(world).filter((kind) => kind === 'joinPipeline').length === 1);
  return world;
}

test('members hold memory for a prompt only once it has a receive buffer', () => {
  const world = withWaiting();
  const waiting = () => world.instances[1]?.requests.get('2')?.sequence;
  let stepsMeanwhile = 0;
  for (let i = 0; i < 5_000 && world.messages.length + world.steps.size > 0; i++) {
    if (waiting()?.waitsForDecodeMemory === true) {
      expect(waiting()?.table.length).toBe(0);
      stepsMeanwhile += world.steps.size;
    }
    world.advance(0, false, false);
  }
  expect(stepsMeanwhile).toBeGreaterThan(0);
  // Each member sends its layers of every token.
  expect(['1', '2'].map((id) => world.streamed.get(id))).toEqual([2 * 200, 2 * 240]);
  expect(world.received.get('2')).toContain('finished');
  expect(world.pagesUsed()).toEqual(nothing);
});

test('a prompt that is cancelled while it waits for a receive buffer frees its place', () => {
  const world = withWaiting();
  world.cancel('2');
  world.finish();
  expect(world.streamed.get('2') ?? 0).toBe(0);
  world.submit(240, 2, [0, 1]);
  world.finish();
  expect(world.received.get('3')).toContain('finished');
  expect(world.pagesUsed()).toEqual(nothing);
});

test('a prompt that is cancelled while its members compute frees the receive buffer', () => {
  const world = withWaiting();
  advanceUntil(world, () => (world.streamed.get('1') ?? 0) > 0);
  world.cancel('1');
  world.finish();
  expect(world.received.get('1')).not.toContain('finished');
  expect(world.received.get('2')).toContain('finished');
  expect(world.pagesUsed()).toEqual(nothing);
});

test('a prompt that exceeds the receive buffers fails before a member joins', () => {
  const world = worldOf();
  world.submit(receiveTokens + 10, 2, [0, 1]);
  advanceUntil(world, () => {
    expect(kindsOf(world)).not.toContain('joinPipeline');
    return world.messages.length === 0;
  });
  expect(world.received.get('0')).toEqual(['failed']);
  expect(world.pagesUsed()).toEqual(nothing);
});

test('the first member computes alone with a reservation of its own when another member declines', () => {
  const world = worldOf();
  // Requests 0 and 3 decode at instance 3, the others at instance 2.
  world.submit(1, 1);
  world.submit(240, 2, [1]);
  // Half of the second prompt exceeds what the first one leaves at instance 1.
  advanceUntil(world, () => (world.instances[1]?.snapshot().pages.used ?? 0) > 0);
  world.submit(1, 1);
  world.submit(240, 2, [0, 1]);
  const seen = new Set<string>();
  for (let i = 0; i < 5_000 && world.messages.length + world.steps.size > 0; i++) {
    for (const kind of kindsOf(world)) seen.add(kind);
    // The newest message first, so that the prompt of instance 1 ends last.
    world.advance(Math.max(0, world.messages.length - 1), false, false);
  }
  expect([...seen]).toEqual(expect.arrayContaining(['declinePipeline', 'withdraw']));
  expect(world.streamed.get('3')).toBe(240);
  expect(world.received.get('3')).toContain('finished');
  expect(world.pagesUsed()).toEqual(nothing);
});

test('a member declines while a prompt over capacity reserves memory there', () => {
  const world = new HandOffWorld(true, 1_000, 2, true, true);
  // 400 tokens exceed instance 0, and no loan is granted.
  world.submit(400, 2, [0]);
  world.finish();
  world.submit(100, 2, [1, 0]);
  world.finish();
  expect(world.streamed.get('1')).toBe(100);
  expect(world.received.get('1')).toContain('finished');
  world.cancel('0');
  world.submit(100, 2, [1, 0]);
  world.finish();
  expect(world.streamed.get('2')).toBe(200);
  expect(world.pagesUsed()).toEqual(nothing);
});

test('the others release a prompt of which a member is lost, and its receive buffer is free', () => {
  const world = withWaiting();
  advanceUntil(world, () => (world.streamed.get('1') ?? 0) > 0);
  world.deliver(0, { kind: 'streamBroken', id: '1', to: 1, ofActivations: true });
  // The conductor cancels the attempt at the instances that are left.
  world.messages.push({ to: 1, event: { kind: 'cancel', id: '1' } });
  world.finish();
  expect(world.received.get('1')).not.toContain('finished');
  expect(world.received.get('2')).toContain('finished');
  expect(world.pagesUsed()).toEqual(nothing);
});

test('a prompt that waits for its receive buffer is released when its decode instance is lost', () => {
  const world = withWaiting();
  advanceUntil(world, () => world.instances[1]?.requests.has('2') === true);
  world.deliver(1, { kind: 'streamBroken', id: '2', to: 2 });
  expect(world.instances[1]?.requests.has('2')).toBe(false);
  world.finish();
  expect(world.received.get('1')).toContain('finished');
});
