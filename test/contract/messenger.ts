// The contract of messengers: pages arrive in their last state, layers leave once they are ready, and no page is read
// or written after a stop or close.
import { describe, expect, it } from 'vitest';
import type { Messenger, ReceiveBufferHandle } from '../../src/runtime/transfer/messenger.ts';

/** A value that no step computes. */
const notComputed = Math.fround(3.14159e20);

/** The pages that a messenger sends, and the steps that compute them. */
export interface PagePool {
  /** Number of pages. */
  readonly pages: number;
  readonly pageBytes: number;
  /** Two blocks that a step computes: their pages by layer, in the order of computation. */
  readonly blocks: readonly [readonly number[], readonly number[]];
  /** Runs that step, or aborts it. */
  step(aborts?: 'aborts'): void;
  read(page: number): Float32Array;
  write(page: number, values: Float32Array): void;
}

/** A pool and its messenger. */
export interface MessengerEnd {
  readonly pool: PagePool;
  readonly messenger: Messenger;
  /** Resolves once a receive buffer has become complete since the last call. */
  awaken(): Promise<void>;
}

export function messengerContract(name: string, open: () => readonly [sender: MessengerEnd, receiver: MessengerEnd]) {
  describe(name, () => {
    const [sender, receiver] = open();
    const [first, second] = sender.pool.blocks;
    const run = () => sender.pool.step();
    const descriptors = (from: readonly number[], base = 0) =>
      Int32Array.from(from.flatMap((page, layer) => [layer, page, base + layer]));
    /** Pages of the receiver, from the end of its pool. */
    const targetPages = (count: number, behind = 0) =>
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
    async function received(wanted: ReceiveBufferHandle): Promise<void> {
      for (;;) {
        const all = receiver.messenger.received();
        expect(all.every((buffer) => buffer === wanted)).toBe(true);
        if (all.length > 0) return;
        await receiver.awaken();
      }
    }

    it('copies pages computed earlier, and reports completion', async () => {
      run();
      const to = targetPages(first.length);
      const { bytes, pages: count } = sender.messenger.counts;
      const buffer = receiver.messenger.open(to);
      sender.messenger.send(buffer, 0, descriptors(first), true);
      await received(buffer);
      expectEqual(to, first);
      expect(sender.messenger.transportTo(buffer)).toMatch(/^(thread|shared|tcp|rdma)$/);
      const { pageBytes } = sender.pool;
      expect(sender.messenger.counts).toMatchObject({
        pages: count + first.length,
        bytes: bytes + first.length * pageBytes,
      });
      receiver.messenger.close(buffer);
    });

    it('counts the pages that may still be read', async () => {
      const to = targetPages(first.length);
      const buffer = receiver.messenger.open(to);
      expect(sender.messenger.pending(buffer)).toBe(0);
      sender.messenger.send(buffer, sender.messenger.nextPoolStep, descriptors(first), false);
      expect(sender.messenger.pending(buffer)).toBe(first.length);
      run();
      while (sender.messenger.pending(buffer) > 0) await new Promise((resolve) => setImmediate(resolve));
      expectEqual(to, first);
      sender.messenger.send(buffer, sender.messenger.nextPoolStep, descriptors(first), true);
      sender.messenger.stop(buffer);
      expect(sender.messenger.pending(buffer)).toBe(0);
      receiver.messenger.close(buffer);
    });

    it('holds pages back until their layers are ready, without delay for other receive buffers', async () => {
      const [waiting, other] = [targetPages(first.length), targetPages(second.length, first.length)];
      spoil(waiting);
      const late = receiver.messenger.open(waiting);
      sender.messenger.send(late, sender.messenger.nextPoolStep, descriptors(first), true);
      const soon = receiver.messenger.open(other);
      sender.messenger.send(soon, 0, descriptors(second), true);
      await received(soon);
      expectEqual(other, second);
      expectSpoilt(waiting);
      run();
      await received(late);
      expectEqual(waiting, first);
      for (const buffer of [late, soon]) receiver.messenger.close(buffer);
    });

    it('delivers a page that is sent again in its last state, also after an aborted step', async () => {
      const to = targetPages(first.length);
      const buffer = receiver.messenger.open(to);
      const filling = Int32Array.from(first);
      sender.messenger.send(buffer, sender.messenger.nextPoolStep, descriptors(first), false, filling);
      for (const page of first) sender.pool.write(page, sender.pool.read(page).fill(1));
      sender.pool.step('aborts');
      sender.messenger.send(buffer, sender.messenger.nextPoolStep, descriptors(first), true, filling);
      run();
      await received(buffer);
      expectEqual(to, first);
      receiver.messenger.close(buffer);
    });

    it('sends layers while the step that computes them runs', async () => {
      const to = targetPages(first.length);
      const { earlyBytes } = sender.messenger.counts;
      // On a busy machine the sender may get no core during the step: repeats until it does.
      while (sender.messenger.counts.earlyBytes === earlyBytes) {
        const buffer = receiver.messenger.open(to);
        sender.messenger.send(buffer, sender.messenger.nextPoolStep, descriptors(first), true);
        run();
        await received(buffer);
        receiver.messenger.close(buffer);
      }
      expectEqual(to, first);
    });

    it('reads and writes nothing after a stop or the close of the receive buffer', async () => {
      const [stopped, closed, last] = [0, 1, 2].map((n) => targetPages(first.length, n * first.length)) as [
        Int32Array,
        Int32Array,
        Int32Array,
      ];
      for (const to of [stopped, closed]) spoil(to);
      const [a, b] = [receiver.messenger.open(stopped), receiver.messenger.open(closed)];
      for (const buffer of [a, b])
        sender.messenger.send(buffer, sender.messenger.nextPoolStep, descriptors(first), true);
      sender.messenger.stop(a);
      receiver.messenger.close(b);
      run();
      sender.messenger.send(b, 0, descriptors(first), true);
      const buffer = receiver.messenger.open(last);
      sender.messenger.send(buffer, 0, descriptors(first), true);
      await received(buffer);
      for (const to of [stopped, closed]) expectSpoilt(to);
      expectEqual(last, first);
      for (const one of [a, buffer]) receiver.messenger.close(one);
    });

    it('continues after a stop, to the same receive buffer, without reading what was registered in between', async () => {
      const [to, other] = [targetPages(first.length), targetPages(1, first.length)];
      for (let i = 0; i < 6; i++) {
        run();
        const buffer = receiver.messenger.open(to);
        // Some pages may have left already.
        sender.messenger.send(buffer, 0, descriptors(first), false);
        if (i % 2 === 1) sender.messenger.send(buffer, sender.messenger.nextPoolStep, descriptors(second), false);
        sender.messenger.stop(buffer);
        expect(sender.messenger.pending(buffer)).toBe(0);
        for (const page of first) sender.pool.write(page, sender.pool.read(page).fill(notComputed));
        const behind = receiver.messenger.open(other);
        sender.messenger.send(behind, 0, descriptors(second.slice(0, 1)), true);
        await received(behind);
        for (const page of to) expect(receiver.pool.read(page).includes(notComputed)).toBe(false);
        run();
        sender.messenger.send(buffer, 0, descriptors(first), true);
        await received(buffer);
        expectEqual(to, first);
        for (const each of [buffer, behind]) receiver.messenger.close(each);
      }
    });

    it('refuses pages and slots that do not exist', () => {
      const buffer = receiver.messenger.open(targetPages(1));
      const send = (page: number, place: number) => () =>
        sender.messenger.send(buffer, 0, Int32Array.of(0, page, place), true);
      expect(send(sender.pool.pages, 0)).toThrow('no such page or slot');
      expect(send(0, 1)).toThrow('no such page or slot');
      expect(() => receiver.messenger.open(Int32Array.of(receiver.pool.pages))).toThrow('Cannot open a receive buffer');
      receiver.messenger.close(buffer);
      expect(receiver.messenger.received()).toEqual([]);
    });
  });
}
