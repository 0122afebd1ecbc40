// Reservations of receive memory that are withdrawn and repeated: with duplicate, late and lost messages the last reservation counts, and no memory leaks.
import { describe, expect, it } from 'vitest';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import { KvReceiver } from '../../../src/core/transfer/hand-off/kv-receiver.ts';
import type { ReceiveMemory } from '../../../src/core/transfer/hand-off/receive-memory.ts';
import { runWorld } from '../../../src/sim/faults/request-chaos.ts';
import { preemptingWorld } from '../../../src/sim/faults/request-worlds.ts';

interface Request {
  readonly id: string;
}

/** A receiver with this much memory, and the requests to which memory is granted. */
function receiverWith(capacityTokens: number) {
  const granted = new Map<string, number>();
  const used = () => [...granted.values()].reduce((sum, tokens) => sum + tokens, 0);
  const memory: ReceiveMemory = {
    fits: ({ tokens }) => tokens <= capacityTokens,
    allocate: (id, { tokens }) => {
      if (used() + tokens > capacityTokens) return false;
      granted.set(id, tokens);
      return true;
    },
    free: (id) => void granted.delete(id),
    pagesOf: () => undefined,
    check: (prompts) => expect(used()).toBe(prompts.reduce((sum, { tokens }) => sum + tokens, 0)),
  };
  let effects: InstanceEffect<never, Request>[] = [];
  const receiver = new KvReceiver<Request>({ emit: (effect) => void effects.push(effect) }, memory);
  /** Messages to instance 7 since the last call. */
  const messages = (): readonly unknown[] => {
    const all = effects.map((effect) => (effect.kind === 'send' ? effect.message : effect));
    effects = [];
    receiver.check();
    return all;
  };
  const reserve = (id: string, reservation?: number) => {
    receiver.reserve(7, { kind: 'reserve', id, request: { id }, reservation }, 60);
    return messages();
  };
  const withdraw = (id: string, reservation: number) => [receiver.withdraw(7, id, reservation), ...messages()];
  return { reserve, withdraw, granted };
}

const reserved = (id: string, reservation?: number) =>
  reservation === undefined ? { kind: 'reserved', id } : { kind: 'reserved', id, reservation };

describe('a withdrawn reservation', () => {
  it('frees memory for the next waiting prompt, and the repeated reservation waits behind it', () => {
    const { reserve, withdraw, granted } = receiverWith(100);
    expect([reserve('a'), reserve('b')]).toEqual([[reserved('a')], []]);
    expect(withdraw('a', 0)).toEqual([true, reserved('b')]);
    expect(reserve('a', 1)).toEqual([]);
    expect(withdraw('b', 0)).toEqual([true, reserved('a', 1)]);
    expect([...granted.keys()]).toEqual(['a']);
  });

  it('gets no memory when it arrives after its withdrawal, or twice', () => {
    const { reserve, withdraw, granted } = receiverWith(100);
    expect(withdraw('a', 0)).toEqual([false]);
    expect(reserve('a')).toEqual([]);
    expect(reserve('a', 1)).toEqual([reserved('a', 1)]);
    // Late, and duplicate.
    expect(withdraw('a', 0)).toEqual([false]);
    expect(reserve('a')).toEqual([]);
    expect(reserve('a', 1)).toEqual([reserved('a', 1)]);
    expect(withdraw('a', 1)).toEqual([true]);
    expect(withdraw('a', 1)).toEqual([false]);
    expect(granted.size).toBe(0);
  });

  it('is replaced by the next reservation if the withdrawal was lost', () => {
    const { reserve, granted } = receiverWith(100);
    expect([reserve('a'), reserve('b')]).toEqual([[reserved('a')], []]);
    expect(reserve('a', 1)).toEqual([reserved('b')]);
    expect([...granted.keys()]).toEqual(['b']);
  });

  it('frees memory for a computed prompt whose blocks the preempted prompt needs: otherwise they wait for each other without end', () => {
    const { requests, completedRequests } = runWorld(preemptingWorld(277), 277).outcome;
    expect(completedRequests).toBeGreaterThan(requests / 2);
  });
});
