// Pages that are touched ahead of their use: slices, never those in use, and again as use grows.
import { expect, test } from 'vitest';
import { PagePool } from '../../../src/core/kvcache/pools/page-pool.ts';
import { PagesAhead } from '../../../src/runtime/threads/pages-ahead.ts';

test('touches 64 MiB beyond the pages ever allocated, in slices of 1 MiB', () => {
  const touched: number[] = [];
  const ahead = new PagesAhead({ writePage: (page) => touched.push(page) }, 4, 2 ** 18);
  const pool = new PagePool(1000, 7);
  const unused = () => ({ first: pool.reached, end: pool.ids });
  let slices = 1;
  while (ahead.advance(unused())) slices++;
  expect(slices).toBe(64);
  expect(touched).toEqual(Array.from({ length: 256 }, (_, i) => 7 + i));
  // Pages in use are not touched again, released ones neither.
  const pages = new Int32Array(10);
  pool.allocate(10, pages, 0);
  pool.release(pages, 0, 10);
  touched.length = 0;
  while (ahead.advance(unused()));
  expect(touched).toEqual(Array.from({ length: 10 }, (_, i) => 263 + i));
});

test('ends with the pool, and touches no page that was allocated meanwhile', () => {
  const touched: number[] = [];
  const ahead = new PagesAhead({ writePage: (page) => touched.push(page) }, 4, 2 ** 18);
  const pool = new PagePool(12);
  const unused = () => ({ first: pool.reached, end: pool.ids });
  expect(ahead.advance(unused())).toBe(true);
  pool.allocate(9, new Int32Array(9), 0);
  expect(ahead.advance(unused())).toBe(false);
  expect(touched).toEqual([0, 1, 2, 3, 9, 10, 11]);
});
