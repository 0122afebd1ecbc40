// The borrow queue: the first instance that asks reserves memory until its prompt is admitted.
import { describe, expect, it } from 'vitest';
import { BorrowQueue } from '../../../src/core/lending/manager/borrow-queue.ts';

describe('borrow queue', () => {
  it('serves instances in the order of their prompts', () => {
    const turns = new BorrowQueue();
    turns.update(2, 1, 7);
    turns.update(0, 1, 3);
    turns.update(2, 1, 7);
    expect(turns.holder).toBe(2);
    turns.update(2, 1, undefined);
    expect(turns.holder).toBe(0);
  });

  it('moves an instance to the end when its next prompt reserves', () => {
    const turns = new BorrowQueue();
    turns.update(1, 1, 0);
    turns.update(4, 1, 0);
    turns.update(1, 1, 1);
    expect(turns.holder).toBe(4);
  });

  it('skips forgotten instances and ignores earlier incarnations', () => {
    const turns = new BorrowQueue();
    turns.update(1, 2, 5);
    turns.update(3, 1, 0);
    turns.update(1, 1, undefined);
    expect(turns.holder).toBe(1);
    turns.forget([1]);
    expect(turns.holder).toBe(3);
  });
});
