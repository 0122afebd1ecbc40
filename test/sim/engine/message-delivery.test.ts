// Messages to an instance that computes.
import { expect, it } from 'vitest';
import type { LengthEvent } from '../../../src/core/instance/length-instance.ts';
import { MessageDelivery } from '../../../src/sim/engine/message-delivery.ts';

it('delivers what arrived during a step at its end, without the wakes that were due before', () => {
  const delivered: string[] = [];
  const host = {
    config: { instances: [{}], threads: {} },
    executors: [{ isRunning: true }],
    deliverToInstance: (_: number, { kind }: LengthEvent) => delivered.push(kind),
  };
  const delivery = new MessageDelivery(host as unknown as ConstructorParameters<typeof MessageDelivery>[0]);
  const loaded: LengthEvent = { kind: 'loaded', id: 'a', source: 1, to: 2 };
  expect([{ kind: 'wake' } as const, loaded].map((event) => delivery.defer(0, event))).toEqual([true, true]);
  delivery.deliverDeferred(0);
  expect(delivered).toEqual(['loaded']);
});
