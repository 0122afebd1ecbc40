// Pinned prefixes: they survive eviction, within their share of memory, until they expire.
import { describe, expect, it } from 'vitest';
import type { PinState } from '../../../src/core/protocol/pin-order.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { Conductor } from '../../../src/core/router/conductor.ts';
import { tokenRequests } from '../../../src/core/router/token-requests.ts';
import { promptOf, request, World } from '../instance-world.ts';

const ttlUs = 60_000_000;
const prefix = promptOf(1, 128);

const pinOf = (id: string, prompt = prefix) => ({
  kind: 'pin' as const,
  id,
  request: request(`pin ${id}`, prompt, { maxTokens: 0 }),
  ttlUs,
});

/** 20 blocks of two pages. */
function world(): World {
  return new World({ pages: 40, pinShare: 0.25 });
}

function fillWithOthers(w: World): void {
  for (let i = 0; i < 8; i++) {
    w.submit(request(`other ${i}`, promptOf(10 + i, 300)));
    w.finishAll();
  }
}

const cachedOf = (w: World, id: string): number | undefined =>
  w.of(id).events.flatMap((event) => (event.kind === 'started' ? [event.cachedTokens] : []))[0];

describe('a pinned prefix', () => {
  it('is computed if it is not cached, without events for clients, and survives an eviction of all other blocks', () => {
    const w = world();
    w.deliver(pinOf('a'));
    expect(w.pins).toEqual([]);
    w.finishAll();
    expect(w.pins).toEqual([['a', { kind: 'pinned', tokens: 128, untilUs: w.nowUs + ttlUs }]]);
    expect(w.received.size).toBe(0);
    fillWithOthers(w);
    w.submit(request('again', [...prefix, 7, 8, 9]));
    w.finishAll();
    expect(cachedOf(w, 'again')).toBe(128);
    expect(w.instance.components.pinning.hitTokens).toBe(128);
  });

  it('is pinned immediately if it is cached', () => {
    const w = world();
    w.submit(request('first', [...prefix, 5]));
    w.finishAll();
    w.deliver(pinOf('a'));
    expect(w.pins).toEqual([['a', { kind: 'pinned', tokens: 128, untilUs: w.nowUs + ttlUs }]]);
  });

  it('ends when its time has passed, which a repeated order renews, or when it is unpinned', () => {
    const w = world();
    w.deliver(pinOf('a'));
    w.finishAll();
    w.nowUs += ttlUs / 2;
    w.deliver(pinOf('a'));
    expect(w.instance.nextUs).toBe(w.nowUs + ttlUs);
    w.nowUs += ttlUs - 1;
    w.deliver({ kind: 'wake' });
    expect(w.pins.at(-1)?.[1].kind).toBe('pinned');
    w.nowUs += 1;
    w.deliver({ kind: 'wake' });
    expect(w.pins.at(-1)).toEqual(['a', { kind: 'unpinned' }]);
    expect(w.instance.snapshot().pages.used).toBe(0);
    w.deliver(pinOf('b'));
    w.deliver({ kind: 'unpin', id: 'b' });
    expect(w.pins.slice(-2).map(([, { kind }]) => kind)).toEqual(['pinned', 'unpinned']);
    w.deliver({ kind: 'unpin', id: 'b' });
    expect(w.ignored.at(-1)).toContain('b is not pinned');
  });

  it('is not computed further when it is unpinned before', () => {
    const w = world();
    w.deliver(pinOf('a'));
    w.deliver({ kind: 'unpin', id: 'a' });
    w.finishAll();
    expect(w.pins).toEqual([['a', { kind: 'unpinned' }]]);
    expect(w.instance.snapshot().pages.used).toBe(0);
  });

  it('is refused with figures if pins would exceed their share, now or always, or if it is shorter than a block', () => {
    const w = world();
    w.deliver(pinOf('a'));
    w.deliver(pinOf('b', promptOf(2, 64)));
    w.deliver(pinOf('c', promptOf(3, 31)));
    w.deliver(pinOf('d', promptOf(4, 200)));
    expect(w.pins).toEqual([
      [
        'b',
        {
          kind: 'refused',
          why: 'memory',
          message: 'Cannot pin a prefix: the memory for pins is full: 4 blocks are pinned, 2 more are requested, 5 fit',
        },
      ],
      [
        'c',
        {
          kind: 'refused',
          why: 'length',
          message: 'Cannot pin a prefix: it is shorter than a block: 31 tokens, a block has 32',
        },
      ],
      [
        'd',
        {
          kind: 'refused',
          why: 'length',
          message: 'Cannot pin a prefix: it exceeds the memory for pins: 200 tokens, 160 fit',
        },
      ],
    ]);
    // The longest request is shorter by the share of pins.
    expect(w.instance.capacityTokens).toBe(15 * 32);
  });

  it('is refused with the name of the option if pins have no memory', () => {
    const w = new World({ pages: 40 });
    w.deliver(pinOf('a'));
    const message = 'Cannot pin a prefix: no memory is reserved for pins: set --pin-memory';
    expect(w.pins).toEqual([['a', { kind: 'refused', why: 'length', message }]]);
  });
});

describe('the conductor', () => {
  const make = () =>
    new Conductor<GenerationRequest>({
      instances: [{ capacityTokens: 1000 }, { capacityTokens: 1000 }],
      queueMax: 10,
      requests: tokenRequests,
    });
  const pinUpdated = (c: Conductor<GenerationRequest>, instance: number, id: string, state: PinState) =>
    c.step(1, { kind: 'pinUpdated', instance, id, state });
  const held: PinState = { kind: 'pinned', tokens: 128, untilUs: 9 };

  it('sends a pin to one instance, to the same one when it is repeated, and forwards its states', () => {
    const c = make();
    expect(c.step(0, pinOf('a'))).toEqual([{ ...pinOf('a'), instance: 0 }]);
    c.step(0, { kind: 'submit', request: request('r', prefix) });
    expect(c.step(1, pinOf('a'))).toMatchObject([{ kind: 'pin', instance: 0 }]);
    expect(pinUpdated(c, 0, 'a', held)).toEqual([{ kind: 'pinUpdated', id: 'a', instance: 0, state: held }]);
    expect(c.step(1, { kind: 'unpin', id: 'a' })).toEqual([{ kind: 'unpin', instance: 0, id: 'a' }]);
    expect(pinUpdated(c, 0, 'a', { kind: 'unpinned' })).toHaveLength(1);
    expect(c.step(1, { kind: 'unpin', id: 'a' })).toMatchObject([{ kind: 'ignored' }]);
  });

  it('tries the next instance if one has no memory, and finally reports whether memory may be free later', () => {
    const c = make();
    const refused = (why: 'length' | 'memory'): PinState => ({ kind: 'refused', why, message: why });
    c.step(0, pinOf('a'));
    expect(pinUpdated(c, 0, 'a', refused('memory'))).toEqual([{ ...pinOf('a'), instance: 1 }]);
    expect(pinUpdated(c, 1, 'a', refused('length'))).toEqual([
      { kind: 'pinUpdated', id: 'a', instance: 1, state: refused('memory') },
    ]);
    c.step(1, pinOf('b'));
    c.step(1, { kind: 'instanceFailed', instance: 1 });
    expect(pinUpdated(c, 0, 'b', refused('length'))).toEqual([
      { kind: 'pinUpdated', id: 'b', instance: 0, state: refused('length') },
    ]);
  });

  it('unpins an unknown pin, and reports pins that are lost with an instance', () => {
    const c = make();
    expect(pinUpdated(c, 1, 'x', held)).toEqual([{ kind: 'unpin', instance: 1, id: 'x' }]);
    c.step(0, pinOf('a'));
    expect(c.step(1, { kind: 'instanceFailed', instance: 0 })).toEqual([
      { kind: 'pinUpdated', id: 'a', instance: 0, state: { kind: 'unpinned' } },
    ]);
    expect(c.step(2, pinOf('a'))).toMatchObject([{ kind: 'pin', instance: 1 }]);
  });
});
