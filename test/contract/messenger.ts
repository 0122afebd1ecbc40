// What every messenger must do: pages land as they were last, layers leave when they are ready, and nothing is touched once it was said so.
import { describe, expect, it } from 'vitest';
import type { Messenger, ReceiveBufferHandle } from '../../src/runtime/transfer/messenger.ts';

/** What no step computes. */
const elsewhere = Math.fround(3.14159e20);

/** Pages that a messenger carries, and what computes them. */
export interface PagePool {
  /** In all. */
  readonly pages: number;
  readonly pageBytes: number;
  /** Two that a step computes: of each a page of every layer, in the order of computation. */
  readonly blocks: readonly [readonly number[], readonly number[]];
  /** Runs that step, or gives it up. */
  step(aborts?: 'aborts'): void;
  read(page: number): Float32Array;
  write(page: number, values: Float32Array): void;
}

/** One end: a pool, and its messenger. */
export interface MessengerEnd {
  readonly pool: PagePool;
  readonly messenger: Messenger;
  /** Resolves when something has landed since the last call. */
  awaken(): Promise<void>;
}

export function messengerContract(name: string, open: () => readonly [sender: MessengerEnd, receiver: MessengerEnd]) {
  describe(name, () => {
    const [sender, receiver] = open();
    const [first, second] = sender.pool.blocks;
    const run = () => sender.pool.step();
    const parcels = (from: readonly number[], base = 0) =>
      Int32Array.from(from.flatMap((page, layer) => [layer, page, base + layer]));
    /** Receiver's pages, from the end of its pool. */
    const places = (count: number, behind = 0) =>
      Int32Array.from({ length: count }, (_, i) => receiver.pool.pages - 1 - behind - i);
    const expectEqual = (to: Int32Array, from: readonly number[]) => {
      for (const [i, page] of from.entries()) expect(receiver.pool.read(to[i] ?? -1)).toEqual(sender.pool.read(page));
    };
    const spoil = (to: Int32Array) => {
      for (const page of to) receiver.pool.write(page, receiver.pool.read(page).fill(7));
    };
    const expectSpoilt = (to: Int32Array) => {
      for (const page of to) expect(receiver.pool.read(page)).toEqual(receiver.pool.read(page).fill(7));
    };
    async function landed(wanted: ReceiveBufferHandle): Promise<void> {
      for (;;) {
        const all = receiver.messenger.received();
        expect(all.every((landing) => landing === wanted)).toBe(true);
        if (all.length > 0) return;
        await receiver.awaken();
      }
    }

    it('copies what was computed before, and says when all is there', async () => {
      run();
      const to = places(first.length);
      const { bytes, pages: count } = sender.messenger.counts;
      const landing = receiver.messenger.open(to);
      sender.messenger.send(landing, 0, parcels(first), true);
      await landed(landing);
      expectEqual(to, first);
      expect(sender.messenger.transportTo(landing)).toMatch(/^(thread|shared|tcp)$/);
      const { pageBytes } = sender.pool;
      expect(sender.messenger.counts).toMatchObject({
        pages: count + first.length,
        bytes: bytes + first.length * pageBytes,
      });
      receiver.messenger.close(landing);
    });

    it('says how many pages may still be read', async () => {
      const to = places(first.length);
      const landing = receiver.messenger.open(to);
      expect(sender.messenger.pending(landing)).toBe(0);
      sender.messenger.send(landing, sender.messenger.nextStep, parcels(first), false);
      expect(sender.messenger.pending(landing)).toBe(first.length);
      run();
      while (sender.messenger.pending(landing) > 0) await new Promise((resolve) => setImmediate(resolve));
      expectEqual(to, first);
      sender.messenger.send(landing, sender.messenger.nextStep, parcels(first), true);
      sender.messenger.stop(landing);
      expect(sender.messenger.pending(landing)).toBe(0);
      receiver.messenger.close(landing);
    });

    it('keeps what waits for its layers back, and holds up no other landing', async () => {
      const [waiting, other] = [places(first.length), places(second.length, first.length)];
      spoil(waiting);
      const late = receiver.messenger.open(waiting);
      sender.messenger.send(late, sender.messenger.nextStep, parcels(first), true);
      const soon = receiver.messenger.open(other);
      sender.messenger.send(soon, 0, parcels(second), true);
      await landed(soon);
      expectEqual(other, second);
      expectSpoilt(waiting);
      run();
      await landed(late);
      expectEqual(waiting, first);
      for (const landing of [late, soon]) receiver.messenger.close(landing);
    });

    it('lands a page that is sent again as it was last, also when the step between was aborted', async () => {
      const to = places(first.length);
      const landing = receiver.messenger.open(to);
      const filling = Int32Array.from(first);
      sender.messenger.send(landing, sender.messenger.nextStep, parcels(first), false, filling);
      for (const page of first) sender.pool.write(page, sender.pool.read(page).fill(1));
      sender.pool.step('aborts');
      sender.messenger.send(landing, sender.messenger.nextStep, parcels(first), true, filling);
      run();
      await landed(landing);
      expectEqual(to, first);
      receiver.messenger.close(landing);
    });

    it('sends layers while the step that computes them runs', async () => {
      const to = places(first.length);
      const { earlyBytes } = sender.messenger.counts;
      // The machine may have no core for it this time: it is tried again until it had.
      while (sender.messenger.counts.earlyBytes === earlyBytes) {
        const landing = receiver.messenger.open(to);
        sender.messenger.send(landing, sender.messenger.nextStep, parcels(first), true);
        run();
        await landed(landing);
        receiver.messenger.close(landing);
      }
      expectEqual(to, first);
    });

    it('touches nothing once it was stopped, or the landing closed', async () => {
      const [stopped, closed, last] = [0, 1, 2].map((n) => places(first.length, n * first.length)) as [
        Int32Array,
        Int32Array,
        Int32Array,
      ];
      for (const to of [stopped, closed]) spoil(to);
      const [a, b] = [receiver.messenger.open(stopped), receiver.messenger.open(closed)];
      for (const landing of [a, b]) sender.messenger.send(landing, sender.messenger.nextStep, parcels(first), true);
      sender.messenger.stop(a);
      receiver.messenger.close(b);
      run();
      sender.messenger.send(b, 0, parcels(first), true);
      const landing = receiver.messenger.open(last);
      sender.messenger.send(landing, 0, parcels(first), true);
      await landed(landing);
      for (const to of [stopped, closed]) expectSpoilt(to);
      expectEqual(last, first);
      for (const one of [a, landing]) receiver.messenger.close(one);
    });

    it('continues after a stop, to the same receive buffer, without reading what was registered in between', async () => {
      const [to, other] = [places(first.length), places(1, first.length)];
      for (let i = 0; i < 6; i++) {
        run();
        const landing = receiver.messenger.open(to);
        // Some may have left by then, or not.
        sender.messenger.send(landing, 0, parcels(first), false);
        if (i % 2 === 1) sender.messenger.send(landing, sender.messenger.nextStep, parcels(second), false);
        sender.messenger.stop(landing);
        expect(sender.messenger.pending(landing)).toBe(0);
        for (const page of first) sender.pool.write(page, sender.pool.read(page).fill(elsewhere));
        const behind = receiver.messenger.open(other);
        sender.messenger.send(behind, 0, parcels(second.slice(0, 1)), true);
        await landed(behind);
        for (const page of to) expect(receiver.pool.read(page).includes(elsewhere)).toBe(false);
        run();
        sender.messenger.send(landing, 0, parcels(first), true);
        await landed(landing);
        expectEqual(to, first);
        for (const each of [landing, behind]) receiver.messenger.close(each);
      }
    });

    it('refuses pages and places that there are not', () => {
      const landing = receiver.messenger.open(places(1));
      const send = (page: number, place: number) => () =>
        sender.messenger.send(landing, 0, Int32Array.of(0, page, place), true);
      expect(send(sender.pool.pages, 0)).toThrow('no such page or slot');
      expect(send(0, 1)).toThrow('no such page or slot');
      expect(() => receiver.messenger.open(Int32Array.of(receiver.pool.pages))).toThrow('Cannot open a receive buffer');
      receiver.messenger.close(landing);
      expect(receiver.messenger.received()).toEqual([]);
    });
  });
}
