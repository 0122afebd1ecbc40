// Links between instances of several processes: each process sees them by its own numbers, whatever numbers the threads used.
import { expect, it } from 'vitest';
import { indexedLinks, namedLinks } from '../../../src/runtime/processes/peer-links.ts';

const counts = (bytes: number, backlogBytes: number) => ({ bytes, backlogBytes, transport: 'tcp' }) as const;

it('are told by the names of their other ends, and summed over the sessions with one', () => {
  // Prefixes have numbers of their own, and a session that begins anew another one.
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
  const places = new Map([
    ['p', 0],
    ['e', 1],
  ]);
  expect(indexedLinks(named, (name) => places.get(name))).toEqual([{ to: 1, ...counts(1010, 4) }]);
});
