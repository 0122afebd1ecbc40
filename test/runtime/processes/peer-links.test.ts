// Links between instances of several processes: named by their peers, then indexed by each gateway.
import { expect, it } from 'vitest';
import { indexedLinks, PeerLinks } from '../../../src/runtime/processes/peer-links.ts';

const counts = (bytes: number, backlogBytes: number) => ({ bytes, backlogBytes, transport: 'tcp' }) as const;
const minuteUs = 60_000_000;

it('links are named by their peers, and summed over the sessions with a peer', () => {
  // Prefix fetches have indices of their own, and each new session has another one.
  const names = new Map([
    [0, 'd'],
    [1, 'e'],
    [2, 'e'],
    [2 ** 20, 'd'],
  ]);
  const links = [0, 1, 2 ** 20, 2, 77].map((to, i) => ({ to, ...counts(10 ** i, i) }));
  const named = new PeerLinks(names).named(0, links);
  expect(named.map(({ name, bytes }) => [name, bytes])).toEqual([
    ['d', 1],
    ['d', 100],
    ['e', 10],
    ['e', 1000],
  ]);
  const indices = new Map([
    ['p', 0],
    ['e', 1],
  ]);
  expect(indexedLinks(named, (name) => indices.get(name))).toEqual([{ to: 1, ...counts(1010, 4) }]);
});

it('links of ended sessions stay for ten minutes, in one sum that grows when the peer joins again', () => {
  const names = new Map([
    [0, 'd'],
    [1, 'e'],
  ]);
  const peerLinks = new PeerLinks(names);
  const linkOf = (to: number, bytes: number) => ({ to, bytesPerSecond: 9, ...counts(bytes, 5) });
  const sumsAt = (minutes: number, ...links: ReturnType<typeof linkOf>[]) =>
    peerLinks.named(minutes * minuteUs, links).map(({ name, bytes, backlogBytes }) => [name, bytes, backlogBytes]);
  peerLinks.named(0, [linkOf(0, 100), linkOf(1, 7)]);
  names.delete(0);
  names.delete(1);
  // The thread has not forgotten the session yet.
  expect(sumsAt(1, linkOf(0, 150))).toEqual([
    ['d', 100, 0],
    ['e', 7, 0],
  ]);
  names.set(2, 'd');
  expect(sumsAt(8, linkOf(2, 30))).toEqual([
    ['d', 100, 0],
    ['d', 30, 5],
    ['e', 7, 0],
  ]);
  names.delete(2);
  expect(sumsAt(9)).toEqual([
    ['d', 130, 0],
    ['e', 7, 0],
  ]);
  expect(sumsAt(10)).toEqual([['d', 130, 0]]);
  expect(peerLinks.named(17 * minuteUs, [])).toEqual([{ to: 2, name: 'd', ...counts(130, 0) }]);
  expect(sumsAt(18)).toEqual([]);
});
