// Prompts on their way to attention workers: pulls, cancels, lost workers, and staging pages that are free again.
import { describe, expect, test, vi } from 'vitest';
import { PulledPages } from '../../../src/runtime/attention-workers/pulled-pages.ts';
import type { Messenger } from '../../../src/runtime/transfer/messenger.ts';
import { Prng } from '../../../src/util/prng.ts';

/** Copies a page whenever the test lets it. */
class FakeWorker {
  /** (pages of the worker): the page of the staging pool, and its content then. */
  pages = new Map<number, string>();
  isLost = false;
  /** Lost, and the instance has not noticed it. */
  isBroken = false;
  readonly #staging: ReadonlyMap<number, string>;
  #pulls: { readonly pages: number[]; next: number; readonly life: number }[] = [];
  /** By receive buffer: a pull of what it receives, and the pages of its slots. */
  readonly #streams = new Map<number, { readonly pages: number[]; readonly to: Int32Array; readonly life: number }>();
  #life = 0;

  constructor(staging: ReadonlyMap<number, string>) {
    this.#staging = staging;
  }

  pull(_pool: number, pages: ArrayLike<number>) {
    if (this.isLost) return undefined;
    const pull = { pages: Array.from(pages), next: 0, life: this.#life };
    this.#pulls.push(pull);
    const isLost = (): boolean => pull.life !== this.#life;
    const isBroken = (): boolean => this.isBroken;
    return {
      pull,
      get isBroken() {
        return isBroken();
      },
      get isDone() {
        return !isLost() && pull.next === pull.pages.length / 2;
      },
      get isLost() {
        return isLost();
      },
      cancel: () => {
        this.#pulls = this.#pulls.filter((other) => other !== pull);
      },
    };
  }

  pullReceived(buffer: number, to: Int32Array) {
    const started = this.pull(0, []);
    if (started !== undefined) this.#streams.set(buffer, { pages: started.pull.pages, to, life: this.#life });
    return started;
  }

  slotReceived(buffer: number, slot: number, from: number): void {
    const stream = this.#streams.get(buffer);
    if (stream?.life === this.#life) stream.pages.push(from, stream.to[slot]);
  }

  /** Copies at most so many pages. */
  work(count: number): void {
    for (let i = 0; i < count; i++) {
      const pull = this.#pulls.find(({ next, pages }) => next < pages.length / 2);
      if (pull === undefined) return;
      const [from, to] = pull.pages.slice(2 * pull.next, 2 * pull.next + 2);
      this.pages.set(to, this.#staging.get(from) ?? 'nothing');
      pull.next++;
    }
  }

  lose(): void {
    this.isLost = true;
    this.#life++;
    this.#pulls = [];
    this.pages = new Map();
  }
}

/** @param streams pages are pulled when they are received, and not once the prompt is complete */
function setup(stagingPages: number, streams = false) {
  const staging = new Map<number, string>();
  const buffers = new Map<string, Int32Array>();
  const complete: string[] = [];
  let last = 0;
  const inner = {
    open: (pages: Int32Array) => {
      buffers.set(String(++last), pages);
      return String(last);
    },
    close: (handle: string) => void buffers.delete(handle),
    received: () => complete.splice(0),
    ...(streams && { localBuffer: Number }),
  } as unknown as Messenger;
  const workers = [new FakeWorker(staging), new FakeWorker(staging)];
  const wake = vi.fn();
  const pulled = new PulledPages(inner, { handle: 7, pages: stagingPages }, workers, wake);
  /** A prompt has arrived in the staging pool. */
  const arrive = (handle: string, content: string): void => {
    for (const slot of (buffers.get(handle) ?? new Int32Array(0)).keys()) arriveSlot(handle, slot, content);
    complete.push(handle);
  };
  const arriveSlot = (handle: string, slot: number, content: string): void => {
    const page = buffers.get(handle)?.[slot];
    if (page === undefined) return;
    staging.set(page, `${content}${slot}`);
    for (const worker of workers) worker.slotReceived(Number(handle), slot, page);
  };
  const contents = (worker: number, pages: readonly number[]) => pages.map((page) => workers[worker].pages.get(page));
  return { workers, pulled, arrive, arriveSlot, contents, buffers, wake };
}

describe('prompts of other instances at attention workers', () => {
  test('a prompt is received once every worker has pulled its pages', () => {
    const { workers, pulled, arrive, contents } = setup(10);
    const handle = pulled.open(Int32Array.of(40, 41, 42));
    expect([pulled.freePages, pulled.received()]).toEqual([7, []]);
    arrive(handle, 'a');
    expect(pulled.received()).toEqual([]);
    workers[0].work(3);
    workers[1].work(2);
    expect(pulled.received()).toEqual([]);
    workers[1].work(1);
    expect([pulled.received(), pulled.received()]).toEqual([[handle], []]);
    for (const worker of [0, 1]) expect(contents(worker, [40, 41, 42])).toEqual(['a0', 'a1', 'a2']);
    pulled.close(handle);
    expect(pulled.freePages).toBe(10);
  });

  test('pages are pulled while the prompt is received, and again when they are received again', () => {
    const { workers, pulled, arrive, arriveSlot, contents } = setup(4, true);
    const handle = pulled.open(Int32Array.of(40, 41));
    arriveSlot(handle, 0, 'early');
    for (const worker of workers) worker.work(1);
    expect([contents(0, [40, 41]), pulled.received()]).toEqual([['early0', undefined], []]);
    arrive(handle, 'a');
    expect(pulled.received()).toEqual([]);
    for (const worker of workers) worker.work(2);
    expect(pulled.received()).toEqual([handle]);
    expect(contents(1, [40, 41])).toEqual(['a0', 'a1']);
  });

  test('a worker that replaces one lost while the prompt is received pulls the whole prompt', () => {
    const { workers, pulled, arrive, arriveSlot, contents } = setup(4, true);
    const handle = pulled.open(Int32Array.of(40, 41));
    arriveSlot(handle, 0, 'a');
    for (const worker of workers) worker.work(1);
    workers[0].lose();
    workers[0].isLost = false;
    pulled.onReplaced(0);
    arriveSlot(handle, 1, 'a');
    arrive(handle, 'a');
    expect(pulled.received()).toEqual([]);
    for (const worker of workers) worker.work(5);
    expect(pulled.received()).toEqual([handle]);
    expect([contents(0, [40, 41]), contents(1, [40, 41])]).toEqual([
      ['a0', 'a1'],
      ['a0', 'a1'],
    ]);
  });

  test('wakes the instance when pages cannot reach a worker, and steps wait for its replacement if that breaks too', async () => {
    const { workers, pulled, arrive, wake } = setup(4);
    const [waiting, next] = [pulled.open(Int32Array.of(1)), pulled.open(Int32Array.of(2))];
    arrive(waiting, 'a');
    pulled.received();
    for (const worker of workers) worker.work(1);
    expect(pulled.received()).toEqual([waiting]);
    arrive(next, 'b');
    pulled.received();
    expect(wake).not.toHaveBeenCalled();
    workers[0].isBroken = true;
    await vi.waitFor(() => expect(wake).toHaveBeenCalled());
    workers[0].lose();
    workers[0].isLost = false;
    expect(pulled.onReplaced(0)()).toBe(false);
    expect(pulled.received()).toEqual([]);
  });

  test('a prompt that is cancelled in the middle of its pulls frees its pages, and nothing more is written', () => {
    const { workers, pulled, arrive, contents, buffers } = setup(3);
    const handle = pulled.open(Int32Array.of(1, 2, 3));
    arrive(handle, 'a');
    pulled.received();
    for (const worker of workers) worker.work(1);
    pulled.close(handle);
    for (const worker of workers) worker.work(5);
    expect([contents(0, [1, 2, 3]), pulled.freePages, buffers.size]).toEqual([['a0', undefined, undefined], 3, 0]);
    expect(pulled.received()).toEqual([]);
    // Another prompt gets the same pages.
    const next = pulled.open(Int32Array.of(1, 2, 3));
    arrive(next, 'b');
    pulled.received();
    for (const worker of workers) worker.work(3);
    expect(pulled.received()).toEqual([next]);
    expect(contents(1, [1, 2, 3])).toEqual(['b0', 'b1', 'b2']);
  });

  test('a worker that replaces a lost one pulls whole prompts: those in the middle, and those that wait for a step', () => {
    const { workers, pulled, arrive, contents } = setup(10);
    const [waiting, inTheMiddle] = [pulled.open(Int32Array.of(1, 2)), pulled.open(Int32Array.of(3, 4))];
    arrive(waiting, 'a');
    pulled.received();
    for (const worker of workers) worker.work(2);
    expect(pulled.received()).toEqual([waiting]);
    arrive(inTheMiddle, 'b');
    pulled.received();
    for (const worker of workers) worker.work(1);
    workers[1].lose();
    expect(pulled.received()).toEqual([]);
    workers[1].isLost = false;
    const isFilled = pulled.onReplaced(1);
    workers[1].work(1);
    expect(isFilled()).toBe(false);
    workers[1].work(1);
    // The prompt in the middle of its pulls delays no step.
    expect([isFilled(), contents(1, [1, 2])]).toEqual([true, ['a0', 'a1']]);
    workers[1].work(2);
    workers[0].work(1);
    expect(pulled.received()).toEqual([inTheMiddle]);
    expect(contents(1, [3, 4])).toEqual(['b0', 'b1']);
  });

  test.each([1, 2, 3, 4])('in a random history of losses and cancels no page is lost or mixed up, seed %i', (seed) => {
    const prng = new Prng(seed, 0);
    const { workers, pulled, arrive, arriveSlot, contents } = setup(24, seed % 2 === 0);
    const open = new Map<string, { readonly pages: readonly number[]; arrived: boolean; received: boolean }>();
    const free = Array.from({ length: 40 }, (_, page) => page);
    for (let turn = 0; turn < 2_000; turn++) {
      const handles = [...open.keys()];
      const handle = handles[prng.integer(0, Math.max(0, handles.length - 1))];
      const buffer = open.get(handle);
      const count = prng.integer(1, 6);
      if (prng.chance(0.2) && pulled.freePages >= count && free.length >= count) {
        const pages = free.splice(0, count);
        open.set(pulled.open(Int32Array.from(pages)), { pages, arrived: false, received: false });
      } else if (buffer !== undefined && prng.chance(0.2) && !buffer.arrived) {
        arrive(handle, `${handle}-`);
        buffer.arrived = true;
      } else if (buffer !== undefined && prng.chance(0.1)) {
        pulled.close(handle);
        open.delete(handle);
        free.push(...buffer.pages);
      }
      if (buffer !== undefined && !buffer.arrived && prng.chance(0.3))
        arriveSlot(handle, prng.integer(0, buffer.pages.length - 1), 'early');
      const [lost] = workers;
      if (prng.chance(0.02)) lost.lose();
      for (const worker of workers) worker.work(prng.integer(0, 3));
      if (lost.isLost && prng.chance(0.2)) {
        lost.isLost = false;
        const isFilled = pulled.onReplaced(0);
        while (!isFilled()) lost.work(1);
      }
      for (const received of pulled.received()) {
        const known = open.get(received);
        if (known === undefined) throw new Error(`Receive buffer ${received} is closed`);
        known.received = true;
      }
      for (const [name, { pages, received }] of open)
        if (received)
          for (const worker of lost.isLost ? [1] : [0, 1])
            expect(contents(worker, pages)).toEqual(pages.map((_, i) => `${name}-${i}`));
      const used = [...open.values()].reduce((sum, { pages }) => sum + pages.length, 0);
      expect(pulled.freePages).toBe(24 - used);
    }
  });
});
