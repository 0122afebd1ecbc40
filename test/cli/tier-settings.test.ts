// What a command gives an instance below its KV memory: shares of SSD, folders, and what makes no sense.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { refuseSharedFolders, tierSettings } from '../../src/cli/serve/instance-tiers.ts';
import { leftBehind } from '../../src/cli/serve/leftover-tiers.ts';

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

it('is refused where two instances would have one folder', () => {
  const own = { role: 'store', ssd: '/s' };
  expect(() => refuseSharedFolders({ ssd: '/t' }, [{ role: 'mixed' }, own])).not.toThrow();
  expect(() => refuseSharedFolders({ ssd: '/s' }, [{ role: 'mixed' }, own])).toThrow('blocks at /s/instance-0');
  expect(() => refuseSharedFolders({}, [own, own])).toThrow('Cannot use --ssd: two instances');
});

it('that more instances have left is named, with what it takes of the disk', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-left-'));
  try {
    expect(leftBehind(join(folder, 'nowhere'), 1)).toBeUndefined();
    for (const index of [0, 1, 10]) writeFileSync(join(folder, `instance-${index}.blocks`), Buffer.alloc(3_000_000, 1));
    mkdirSync(join(folder, 'instance-3'));
    writeFileSync(join(folder, 'instance-3', 'instance-0.index'), Buffer.alloc(1_000_000, 1));
    writeFileSync(join(folder, 'key'), '');
    expect(leftBehind(folder, 11)).toBeUndefined();
    expect(leftBehind(folder, 2)).toMatch(
      /^A run with more than 2 instances left [45] MB at \S+: instance-10\.blocks, instance-3: found again/,
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
});
