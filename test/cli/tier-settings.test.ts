// Tier settings of instances: shares of SSD, folders, and refused combinations.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { blockKeyOf, keepBlockKey, storedBlockKey } from '../../src/cli/serve/block-key.ts';
import { refuseSharedFolders, tierSettings } from '../../src/cli/serve/instance-tiers.ts';
import { leftoverTiers } from '../../src/cli/serve/leftover-tiers.ts';

it('are none by default, and a part of the SSD in a folder of its own for each instance', () => {
  expect(tierSettings({}, 0, 1)).toBeUndefined();
  expect(tierSettings({ hostMemory: 5 }, 1, 2)).toEqual({ hostBytes: 5, ssd: undefined });
  expect(tierSettings({ ssd: '/s', ssdSize: 7 }, 1, 2)).toEqual({
    hostBytes: undefined,
    ssd: { path: '/s/instance-1', bytes: 3 },
  });
  expect(tierSettings({ ssd: '/s' }, 0, 4)?.ssd?.bytes).toBe(2.5 * 2 ** 30);
});

it('are refused with only a size', () => {
  expect(() => tierSettings({ ssdSize: 7 }, 0, 1)).toThrow('Cannot use --ssd-size: it needs --ssd');
});

it('are refused if two instances would use one folder', () => {
  const own = { role: 'store', ssd: '/s' };
  expect(() => refuseSharedFolders({ ssd: '/t' }, [{ role: 'mixed' }, own])).not.toThrow();
  expect(() => refuseSharedFolders({ ssd: '/s' }, [{ role: 'mixed' }, own])).toThrow(
    'two instances would use /s/instance-0',
  );
  expect(() => refuseSharedFolders({}, [own, own])).toThrow('Cannot use --ssd: two instances');
});

it('keep the key of a cluster beside the blocks', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-key-'));
  try {
    const own = join(folder, 'instance-0');
    expect(storedBlockKey(own)).toBeUndefined();
    for (const key of [
      [0, 1, 2, 0xffff_ffff],
      [9, 8, 7, 6],
    ]) {
      keepBlockKey(own, key);
      expect(storedBlockKey(own)).toEqual(key);
      expect(blockKeyOf(own)).toEqual(Uint32Array.from(key));
    }
    writeFileSync(join(own, 'key'), 'other');
    expect(() => storedBlockKey(own)).toThrow('it is not a block key');
  } finally {
    rmSync(folder, { recursive: true });
  }
});

it('left by a run with more instances are reported with their size on disk', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-left-'));
  try {
    expect(leftoverTiers(join(folder, 'nowhere'), 1)).toBeUndefined();
    for (const index of [0, 1, 10]) writeFileSync(join(folder, `instance-${index}.blocks`), Buffer.alloc(3_000_000, 1));
    mkdirSync(join(folder, 'instance-3'));
    writeFileSync(join(folder, 'instance-3', 'instance-0.index'), Buffer.alloc(1_000_000, 1));
    writeFileSync(join(folder, 'key'), '');
    expect(leftoverTiers(folder, 11)).toBeUndefined();
    expect(leftoverTiers(folder, 2)).toMatch(
      /^An earlier run with more than 2 instances left [45] MB at \S+: instance-10\.blocks, instance-3: run that many again/,
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
});
