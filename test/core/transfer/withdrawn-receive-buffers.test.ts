// Reservations of receive memory that are given up and repeated: with doubled, late and lost messages the last reservation counts, and no memory leaks.
import { describe, expect, it } from 'vitest';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import { KvReceiver } from '../../../src/core/transfer/hand-off/kv-receiver.ts';
import type { ReceiveMemory } from '../../../src/core/transfer/hand-off/receive-memory.ts';
import { runRequestChaos } from '../../../src/sim/faults/request-chaos.ts';

interface Request {
  readonly id: string;
}

/** The number of tokens, and the requests that they are granted to. */
function decoder(capacityTokens: number) {
  const granted = new Map<string, number>();
  const used = () => [...granted.values()].reduce((sum, tokens) => sum + tokens, 0);
  const memory: ReceiveMemory = {
    fits: (tokens) => tokens <= capacityTokens,
    allocate: (id, tokens) => {
      if (used() + tokens > capacityTokens) return false;
      granted.set(id, tokens);
      return true;
    },
    free: (id) => void granted.delete(id),
    pagesOf: () => undefined,
    check: (tokens) => expect(used()).toBe(tokens),
  };
  let effects: InstanceEffect<never, Request>[] = [];
  const arrivals = new KvReceiver<Request>({ emit: (effect) => void effects.push(effect) }, memory);
  /** What is said back to instance 7. */
  const said = (): readonly unknown[] => {
    const all = effects.map((effect) => (effect.kind === 'send' ? effect.message : effect));
    effects = [];
    arrivals.check();
    return all;
  };
  const reserve = (id: string, reservation?: number) => {
    arrivals.reserve(7, { kind: 'reserve', id, request: { id }, reservation }, 60);
    return said();
  };
  const withdraw = (id: string, reservation: number) => [arrivals.withdraw(7, id, reservation), ...said()];
  return { reserve, withdraw, granted };
}

const reserved = (id: string, reservation?: number) =>
  reservation === undefined ? { kind: 'reserved', id } : { kind: 'reserved', id, reservation };

describe('memory that is given up', () => {
  it('is granted to the next prompt that waits, and the next reservation waits behind it', () => {
    const { reserve, withdraw, granted } = decoder(100);
    expect([reserve('a'), reserve('b')]).toEqual([[reserved('a')], []]);
    expect(withdraw('a', 0)).toEqual([true, reserved('b')]);
    expect(reserve('a', 1)).toEqual([]);
    expect(withdraw('b', 0)).toEqual([true, reserved('a', 1)]);
    expect([...granted.keys()]).toEqual(['a']);
  });

  it('is not reserved for a reservation that arrives after its withdrawal, or twice', () => {
    const { reserve, withdraw, granted } = decoder(100);
    expect(withdraw('a', 0)).toEqual([false]);
    expect(reserve('a')).toEqual([]);
    expect(reserve('a', 1)).toEqual([reserved('a', 1)]);
    // Late, and twice.
    expect(withdraw('a', 0)).toEqual([false]);
    expect(reserve('a')).toEqual([]);
    expect(reserve('a', 1)).toEqual([reserved('a', 1)]);
    expect(withdraw('a', 1)).toEqual([true]);
    expect(withdraw('a', 1)).toEqual([false]);
    expect(granted.size).toBe(0);
  });

  it('is given up by the next reservation where the withdrawal was lost', () => {
    const { reserve, granted } = decoder(100);
    expect([reserve('a'), reserve('b')]).toEqual([[reserved('a')], []]);
    expect(reserve('a', 1)).toEqual([reserved('b')]);
    expect([...granted.keys()]).toEqual(['b']);
  });

  it('is granted to a computed prompt that keeps the blocks which the first needs: they waited for each other without end', () => {
    const { requests, completed } = runRequestChaos(277).totals;
    expect(completed).toBeGreaterThan(requests / 2);
  });
});
