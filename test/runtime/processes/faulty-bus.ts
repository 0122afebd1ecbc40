// A bus that loses, duplicates and delays frames of sessions, by a seed; announcements and records are unaffected.
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { Prng } from '../../../src/util/prng.ts';

/** Shares of frames. */
export interface BusFaults {
  readonly lost: number;
  readonly duplicated: number;
  readonly delayed: number;
}

export function faultyBus(bus: Bus, seed: number, { lost, duplicated, delayed }: BusFaults): Bus {
  const prng = new Prng(seed, 1);
  const delayedFrames: (() => void)[] = [];
  return {
    ...bus,
    records: bus.records,
    snapshots: bus.snapshots,
    durable: bus.durable,
    subscribe: (subject, handler) => bus.subscribe(subject, handler),
    flush: () => bus.flush(),
    watchConnection: (onChange) => bus.watchConnection(onChange),
    close: () => bus.close(),
    publish: (subject, payload) => {
      const publish = (): void => bus.publish(subject, payload);
      if (!/^(link|peer|peerback|fetch|stage)\./.test(subject)) {
        publish();
        return;
      }
      // A delayed frame follows the next one.
      const due = delayedFrames.splice(0);
      if (!prng.chance(lost)) {
        if (prng.chance(delayed)) delayedFrames.push(publish);
        else publish();
        if (prng.chance(duplicated)) publish();
      }
      for (const publishDelayed of due) publishDelayed();
    },
  };
}
