// A bus that loses, doubles and delays frames of links, by a seed; announcements and records it leaves alone.
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { Prng } from '../../../src/util/prng.ts';

export interface BusFaults {
  /** Shares of frames. */
  readonly loss: number;
  readonly doubled: number;
  readonly late: number;
}

export function faultyBus(bus: Bus, seed: number, { loss, doubled, late }: BusFaults): Bus {
  const dice = new Prng(seed, 1);
  const held: (() => void)[] = [];
  return {
    ...bus,
    records: bus.records,
    snapshots: bus.snapshots,
    durable: bus.durable,
    subscribe: (subject, hear) => bus.subscribe(subject, hear),
    flush: () => bus.flush(),
    watchConnection: (tell) => bus.watchConnection(tell),
    close: () => bus.close(),
    publish: (subject, payload) => {
      const publish = (): void => bus.publish(subject, payload);
      if (!/^(link|peer|peerback|fetch|stage)\./.test(subject)) {
        publish();
        return;
      }
      // What was late comes after what was said later.
      const waiting = held.splice(0);
      if (!dice.chance(loss)) {
        if (dice.chance(late)) held.push(publish);
        else publish();
        if (dice.chance(doubled)) publish();
      }
      for (const tell of waiting) tell();
    },
  };
}
