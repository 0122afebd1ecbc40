// What a command gives an instance below its KV memory: shares of SSD, folders, and what makes no sense.
import { expect, it } from 'vitest';
import { tierSettings } from '../../src/cli/instance-tiers.ts';

it('is nothing unless asked for, and a part of SSD in a place of its own for each', () => {
  expect(tierSettings({}, 0, 1)).toBeUndefined();
  expect(tierSettings({ hostMemory: 5 }, 1, 2)).toEqual({ hostBytes: 5, ssd: undefined });
  expect(tierSettings({ ssd: '/s', ssdSize: 7 }, 1, 2)).toEqual({
    hostBytes: undefined,
    ssd: { path: '/s/instance-1', bytes: 3 },
  });
  expect(tierSettings({ ssd: '/s' }, 0, 4)?.ssd?.bytes).toBe(2.5 * 2 ** 30);
});

it('is refused where only its size is given', () => {
  expect(() => tierSettings({ ssdSize: 7 }, 0, 1)).toThrow('Cannot use --ssd-size: it needs --ssd');
});
