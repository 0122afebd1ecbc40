// Links between instances of several processes: named by their peers, then indexed by each gateway.
import { expect, it } from 'vitest';
import { indexedLinks, namedLinks } from '../../../src/runtime/processes/peer-links.ts';

const counts = (bytes: number, backlogBytes: number) => ({ bytes, backlogBytes, transport: 'tcp' }) as const;

it('links are named by their peers, and summed over the sessions with a peer', () => {
  // Prefix fetches have indices of their own, and each new session has another one.
  const names = new Map([
    [0, 'd'],
    [1, 'e'],
    [2, 'e'],
    [2 ** 20, 'd'],
  ]);
  const links = [0, 1, 2 ** 20, 2, 77].map((to, i) => ({ to, ...counts(10 ** i, i) }));
  const named = namedLinks(links, (to) => names.get(to));
  expect(named.map(({ name, bytes }) => [name, bytes])).toEqual([
    ['d', 1],
    ['e', 10],
    ['d', 100],
    ['e', 1000],
  ]);
  const indices = new Map([
    ['p', 0],
    ['e', 1],
  ]);
  expect(indexedLinks(named, (name) => indices.get(name))).toEqual([{ to: 1, ...counts(1010, 4) }]);
});
