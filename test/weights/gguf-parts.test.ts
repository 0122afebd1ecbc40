// GGUF models split over several files.
import { copyFileSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { openModel } from '../../src/weights/open-model.ts';
import { ggufMetadata, ggufTensors, tinySpec, writeGgufModel } from './random-model.ts';
import { temporaryFolder } from './temporary.ts';
import { type GgufValue, numbers, u32, writeGguf } from './writers.ts';

const folder = temporaryFolder();
const tensors = ggufTensors(tinySpec, 'q8_0');
const third = Math.ceil(tensors.length / 3);
const partName = (part: number) => `big-0000${part}-of-00003.gguf`;

type Entry = readonly [string, GgufValue];

/** Writes three parts to a folder: the first has the model's metadata, each has its part number. */
function writeParts(name: string, changes: Readonly<Record<number, readonly Entry[]>> = {}): string {
  const path = join(folder.path, name);
  mkdirSync(path);
  for (const part of [1, 2, 3]) {
    const entries: Entry[] = [
      ['split.no', u32(part - 1)],
      ['split.count', u32(3)],
      ['split.tensors.count', u32(tensors.length)],
      ...(changes[part] ?? []),
    ];
    const metadata: Entry[] = [...(part === 1 ? ggufMetadata(tinySpec) : []), ...new Map(entries)];
    const own = tensors.slice((part - 1) * third, part * third);
    writeFileSync(join(path, partName(part)), writeGguf({ metadata, tensors: own }));
  }
  return path;
}

test('a split model opens by its folder or by any of its parts', () => {
  const whole = join(folder.path, 'whole.gguf');
  writeGgufModel(whole, tinySpec, 'q8_0');
  const single = openModel(whole);
  const path = writeParts('parts');
  for (const name of [path, join(path, partName(1)), join(path, partName(3))]) {
    const split = openModel(name);
    expect(split.id).toBe('big');
    expect(split.config).toEqual(single.config);
    expect([...split.tensors()].map((tensor) => tensor.name)).toEqual(
      [...single.tensors()].map((tensor) => tensor.name),
    );
    for (const info of single.tensors()) {
      const other = split.tensor(info.name) ?? info;
      expect(Buffer.compare(split.read(other, 0, other.byteLength), single.read(info, 0, info.byteLength))).toBe(0);
    }
    expect(new Set([...split.tensors()].map((tensor) => tensor.file)).size).toBe(3);
    split.close();
  }
  single.close();
});

test('parts of different models are refused with a one-line error', () => {
  const refused = (name: string, change: Readonly<Record<number, readonly Entry[]>>) => () =>
    openModel(join(writeParts(name, change), partName(1)));
  expect(refused('count', { 2: [['split.count', u32(4)]] })).toThrow(/4 in a part of 3 \(key "split.count"/);
  expect(refused('number', { 3: [['split.no', u32(1)]] })).toThrow(/1 in part 2 \(counted from 0\)/);
  expect(refused('tensors', { 1: [['split.tensors.count', u32(99)]] })).toThrow(/tensors, the key states 99/);
  expect(refused('kind', { 1: [['split.count', numbers('u32', [3])]] })).toThrow(/a finite number was expected/);
  expect(refused('many', { 1: [['split.count', u32(70_000)]] })).toThrow(/70000 parts, where 1 to 4096 are allowed/);
  const beyond = join(writeParts('beyond'), partName(7));
  copyFileSync(join(folder.path, 'beyond', partName(2)), beyond);
  expect(() => openModel(beyond)).toThrow(/split over 3 files: their names must end like -00001-of-00003.gguf/);
  const missing = writeParts('missing');
  rmSync(join(missing, partName(2)));
  expect(() => openModel(missing)).toThrow(/big-00002-of-00003.gguf/);
});
