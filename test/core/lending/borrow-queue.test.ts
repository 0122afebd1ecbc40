// The borrow queue: the first instance that asks reserves memory until its prompt is admitted.
import { describe, expect, it } from 'vitest';
import { BorrowQueue } from '../../../src/core/lending/manager/borrow-queue.ts';

describe('the borrow queue', () => {
  it('serves instances in the order of their prompts', () => {
    const queue = new BorrowQueue();
    queue.update(2, 1, 7);
    queue.update(0, 1, 3);
    queue.update(2, 1, 7);
    expect(queue.holder).toBe(2);
    queue.update(2, 1, undefined);
    expect(queue.holder).toBe(0);
  });

  it('moves an instance to the end when its next prompt reserves', () => {
    const queue = new BorrowQueue();
    queue.update(1, 1, 0);
    queue.update(4, 1, 0);
    queue.update(1, 1, 1);
    expect(queue.holder).toBe(4);
  });

  it('skips forgotten instances and ignores earlier incarnations', () => {
    const queue = new BorrowQueue();
    queue.update(1, 2, 5);
    queue.update(3, 1, 0);
    queue.update(1, 1, undefined);
    expect(queue.holder).toBe(1);
    queue.forget([1]);
    expect(queue.holder).toBe(3);
  });
});
