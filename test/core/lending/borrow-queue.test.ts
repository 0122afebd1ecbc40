// Whose turn it is to gather memory: the first who asked, until its prompt is let in.
import { describe, expect, it } from 'vitest';
import { BorrowQueue } from '../../../src/core/lending/manager/borrow-queue.ts';

describe('turns', () => {
  it('go in the order in which prompts asked', () => {
    const turns = new BorrowQueue();
    turns.update(2, 1, 7);
    turns.update(0, 1, 3);
    turns.update(2, 1, 7);
    expect(turns.holder).toBe(2);
    turns.update(2, 1, undefined);
    expect(turns.holder).toBe(0);
  });

  it('send an instance whose next prompt gathers to the end', () => {
    const turns = new BorrowQueue();
    turns.update(1, 1, 0);
    turns.update(4, 1, 0);
    turns.update(1, 1, 1);
    expect(turns.holder).toBe(4);
  });

  it('pass over an instance that is forgotten, and heed no earlier life', () => {
    const turns = new BorrowQueue();
    turns.update(1, 2, 5);
    turns.update(3, 1, 0);
    turns.update(1, 1, undefined);
    expect(turns.holder).toBe(1);
    turns.forget([1]);
    expect(turns.holder).toBe(3);
  });
});
