// The map for entries that come and go: as `Map`, and without what `Map` keeps of deleted values.
import { spawnSync } from 'node:child_process';
import { expect, it } from 'vitest';
import { Prng } from '../../src/util/prng.ts';
import { SlotMap } from '../../src/util/slot-map.ts';

it('has the entries of a Map, in their order, after any changes', () => {
  const prng = new Prng(21, 0);
  const slots = new SlotMap<string, number>();
  const map = new Map<string, number>();
  for (let i = 0; i < 400; i++) {
    const key = `k${prng.integer(0, 11)}`;
    const change = prng.integer(0, 7);
    if (change === 0 && i % 8 === 0) {
      slots.clear();
      map.clear();
    } else if (change < 4) expect(slots.delete(key)).toBe(map.delete(key));
    else {
      slots.set(key, i);
      map.set(key, i);
    }
    expect([slots.size, slots.has(key), slots.get(key)]).toEqual([map.size, map.has(key), map.get(key)]);
    expect([[...slots], [...slots.keys()], [...slots.values()]]).toEqual([
      [...map],
      [...map.keys()],
      [...map.values()],
    ]);
  }
});

it('yields each entry once while entries are deleted', () => {
  const slots = new SlotMap<number, string>();
  for (let i = 0; i < 5; i++) slots.set(i, `value ${i}`);
  const seen: string[] = [];
  for (const [key, value] of slots) {
    seen.push(value);
    slots.delete(key);
    slots.delete(3);
  }
  expect(seen).toEqual(['value 0', 'value 1', 'value 2', 'value 4']);
});

/** Seven entries are there at any time, after a pause of some collections. Each has 8 KB. */
const program = `
  const churn = (slots) => {
    for (let i = 0; i < 7; i++) slots.set('early ' + i, []);
    for (let i = 0; i < 10000; i++) globalThis.garbage = new Array(1000).fill(i);
    for (let i = 0; i < 20000; i++) {
      slots.set('id ' + i, new Array(1000).fill(i));
      slots.delete('id ' + (i - 7));
    }
  };
  import(process.argv[1]).then(({ SlotMap }) => churn(new SlotMap()));
`;

it('lets deleted values go before the old generation has them', () => {
  const module = new URL('../../dist/util/slot-map.js', import.meta.url).href;
  const { stdout } = spawnSync(process.execPath, ['--trace-gc', '-e', program, module], { encoding: 'utf8' });
  expect(stdout).toContain('Scavenge');
  // A `Map` gives three.
  expect(stdout.match(/Mark-Compact/g)).toBeNull();
});
