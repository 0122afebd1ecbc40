// Counters of links: what is kept of an instance that is lost for good.
import { expect, it } from 'vitest';
import { LinkCounters } from '../../../src/runtime/transfer/link-counters.ts';

const transferred = { pages: 0, bytes: 0, earlyBytes: 0, streams: 0, firstPages: 0, copySeconds: 0, faults: 0 };

it('keeps the link of a stream that has ended, and nothing of an instance that is forgotten', () => {
  const counters = new LinkCounters({ transportTo: () => 'tcp', counts: transferred });
  counters.add(1, 'a', '1 r', 100);
  counters.add(2, 'b', '2 r', 30);
  counters.streamEnded('2 r');
  expect(counters.all).toEqual([
    { to: 1, bytes: 100, backlogBytes: 100, transport: 'tcp' },
    { to: 2, bytes: 30, backlogBytes: 0, transport: 'tcp' },
  ]);
  const { changes } = counters;
  counters.forget(1);
  counters.forget(7);
  expect(counters.changes).toBeGreaterThan(changes);
  expect(counters.all.map(({ to }) => to)).toEqual([2]);
  // The stream was forgotten with its link: it does not count as one of a later link under the same name.
  counters.add(1, 'a', '1 r', 5);
  counters.streamEnded('1 r');
  expect(counters.all).toContainEqual({ to: 1, bytes: 5, backlogBytes: 0, transport: 'tcp' });
});
