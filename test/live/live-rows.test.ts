// Rows between members of a group: whole and in any order of events, and no room kept for what is unwanted or whose other side is gone.
import { describe, expect, it } from 'vitest';
import { LiveRows, type RowPages, type RowsWire } from '../../src/live/live-rows.ts';
import type { Messenger } from '../../src/live/messenger.ts';

const columns = 3;
const pageValues = 8;
const chunkPages = 4;

interface End {
  readonly rows: LiveRows;
  readonly told: RowsWire[];
}

/** Two ends whose pages are copied when they are sent. */
function pair(): readonly [End, End] {
  const landings = new Map<
    string,
    { readonly pool: Float32Array; readonly pages: Int32Array; readonly done: string[] }
  >();
  const end = (name: string): End => {
    const pool = new Float32Array(4 * chunkPages * pageValues);
    const at = (page: number) => pool.subarray(page * pageValues, (page + 1) * pageValues);
    const done: string[] = [];
    let count = 0;
    const messenger: Messenger = {
      counts: { pages: 0, bytes: 0, earlyBytes: 0, streams: 0, firstPages: 0, copySeconds: 0, faults: 0 },
      nextStep: 1,
      open: (pages) => {
        const handle = `${name}${++count}`;
        landings.set(handle, { pool, pages, done });
        return handle;
      },
      arrivals: () => undefined,
      close: (handle) => void landings.delete(handle),
      landed: () => done.splice(0),
      givenUp: () => [],
      send: (handle, _, parcels) => {
        const to = landings.get(handle);
        for (let i = 0; i < parcels.length; i += 3)
          to?.pool.set(at(parcels[i + 1]), to.pages[parcels[i + 2]] * pageValues);
        to?.done.push(handle);
      },
      stop: () => {},
      left: () => 0,
      wayTo: () => 'thread',
    };
    const memory: RowPages = {
      ...{ pages: 4 * chunkPages, chunkPages, pageValues, columns },
      read: (page) => at(page).slice(),
      write: (page, values) => at(page).set(values),
    };
    const told: RowsWire[] = [];
    return { rows: new LiveRows(memory, messenger, (_, wire) => told.push(wire)), told };
  };
  return [end('a'), end('b')];
}

const wanted = () => true;
const chunk = (from: number, tokens: number) => ({ from, tokens, cachedTokens: 0 });
const values = (seed: number, tokens: number) =>
  Float32Array.from({ length: tokens * columns }, (_, i) => seed + i / 7);
/** Each hears what the other has told so far; every message twice. */
function tell([a, b]: readonly [End, End], isWanted = wanted): boolean {
  const [fromA, fromB] = [a.told.splice(0), b.told.splice(0)];
  for (const wire of fromA) b.rows.hear(1, wire, isWanted);
  for (const wire of fromB) for (let i = 0; i < 2; i++) a.rows.hear(2, wire, wanted);
  return fromA.length + fromB.length > 0;
}

describe('rows between members', () => {
  it('come whole, more chunks than there is room for', () => {
    const ends = pair();
    for (let i = 0; i < 9; i++) ends[0].rows.send(2, 'r', chunk(10 * i, 10 * i + 10 - i), values(i, 10 - i));
    const come = [];
    while (tell(ends)) come.push(...ends[1].rows.landed());
    expect(come.map((each) => each.chunk.from)).toEqual(Array.from({ length: 9 }, (_, i) => 10 * i));
    for (const [i, { rows }] of come.entries()) expect(rows).toEqual(values(i, 10 - i));
    expect(ends.map(({ rows }) => rows.underWay)).toEqual([0, 0]);
  });

  it.each([0, 1, 2, 3])('are dropped by both sides when nobody wants them after %i turns', (turns) => {
    const ends = pair();
    for (let i = 0; i < 5; i++) ends[0].rows.send(2, 'r', chunk(i, i + 1), values(i, 1));
    for (let turn = 0; turn < turns; turn++) tell(ends);
    const nobody = () => false;
    ends[1].rows.sweep(nobody);
    while (tell(ends, nobody)) ends[1].rows.sweep(nobody);
    expect(ends.map(({ rows }) => rows.underWay)).toEqual([0, 0]);
    ends[0].rows.send(2, 's', chunk(0, 10), values(5, 10));
    const come = [];
    while (tell(ends)) come.push(...ends[1].rows.landed());
    expect(come.map(({ rows }) => rows)).toEqual([values(5, 10)]);
  });

  it.each([0, 1, 2, 3])('are dropped by whoever loses the other after %i turns', (turns) => {
    const ends = pair();
    for (let i = 0; i < 5; i++) ends[0].rows.send(2, 'r', chunk(i, i + 1), values(i, 1));
    for (let turn = 0; turn < turns; turn++) tell(ends);
    ends[0].rows.lost(2);
    ends[1].rows.lost(1);
    expect(ends.map(({ rows }) => rows.underWay)).toEqual([0, 0]);
  });
});
