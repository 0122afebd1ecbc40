// The files of a GGUF model: one file, or the numbered parts of a split model. The first part holds the metadata.
import { basename, dirname, join } from 'node:path';
import { ModelFileError } from '../errors.ts';
import { RandomAccessFile } from '../random-access-file.ts';
import { type GgufHeader, readGgufHeader } from './gguf-header.ts';

const partPattern = /^(?<stem>.+)-(?<part>\d{5})-of-(?<count>\d{5})\.gguf$/i;
const partsMax = 4096;

export interface GgufPart {
  readonly path: string;
  readonly file: RandomAccessFile;
  readonly header: GgufHeader;
}

/** Model name from the name of its file or of any of its parts. */
export function ggufModelId(path: string): string {
  const name = basename(path);
  return partPattern.exec(name)?.groups?.stem ?? name.replace(/\.gguf$/i, '');
}

/** The only model among these file names: a single file or the parts of one split model; undefined otherwise. */
export function onlyGgufModel(names: readonly string[]): string | undefined {
  const [first] = names;
  const isSplit = names.every((name) => partPattern.test(name) && ggufModelId(name) === ggufModelId(first ?? ''));
  return names.length === 1 || isSplit ? first : undefined;
}

/**
 * Opens a GGUF file, or all parts of a split model, first part first.
 * @throws ModelFileError when a part is missing or belongs to another model; no file stays open
 */
export function openGgufParts(path: string): readonly [GgufPart, ...GgufPart[]] {
  const opened: GgufPart[] = [];
  try {
    const requested = openPart(path, opened);
    const count = partCount(requested);
    if (count === 1) return [requested];
    const parts = partPaths(requested, count).map((other) => (other === path ? requested : openPart(other, opened)));
    for (const [index, part] of parts.entries()) checkPart(part, index, count);
    const [first, ...rest] = parts;
    checkTensorCount(first as GgufPart, parts);
    return [first as GgufPart, ...rest];
  } catch (error) {
    for (const { file } of opened) file.close();
    throw error;
  }
}

/** Appends the part to `opened`. A file that is not valid GGUF is closed before the error. */
function openPart(path: string, opened: GgufPart[]): GgufPart {
  const file = new RandomAccessFile(path);
  try {
    const part = { path, file, header: readGgufHeader(file) };
    opened.push(part);
    return part;
  } catch (error) {
    file.close();
    throw error;
  }
}

function partCount({ header: { metadata } }: GgufPart): number {
  const count = metadata.integer('split.count') ?? 1;
  if (count < 0 || count > partsMax) metadata.fail('split.count', `${count} parts, where 1 to ${partsMax} are allowed`);
  return Math.max(count, 1);
}

function partPaths({ path, header: { metadata } }: GgufPart, count: number): string[] {
  const name = partPattern.exec(basename(path))?.groups;
  const part = Number(name?.part);
  // A part number outside the name's own count cannot belong to a split model.
  if (name === undefined || Number(name.count) !== count || part < 1 || part > count) {
    const ending = `-00001-of-${String(count).padStart(5, '0')}.gguf`;
    return metadata.fail('split.count', `the model is split over ${count} files: their names must end like ${ending}`);
  }
  return Array.from({ length: count }, (_, index) =>
    // The requested part keeps its own spelling, upper or lower case.
    index + 1 === part
      ? path
      : join(dirname(path), `${name.stem}-${String(index + 1).padStart(5, '0')}-of-${name.count}.gguf`),
  );
}

function checkPart({ header: { metadata } }: GgufPart, index: number, count: number): void {
  const [number, stated] = [metadata.integer('split.no'), metadata.integer('split.count')];
  if (stated !== count) metadata.fail('split.count', `${stated ?? 'no count'} in a part of ${count}`);
  if (number !== index) metadata.fail('split.no', `${number ?? 'no number'} in part ${index} (counted from 0)`);
}

function checkTensorCount(first: GgufPart, parts: readonly GgufPart[]): void {
  const stated = first.header.metadata.integer('split.tensors.count');
  const found = parts.reduce((sum, { header }) => sum + header.tensors.length, 0);
  if (stated === undefined || stated === found) return;
  throw new ModelFileError({
    file: first.path,
    key: 'split.tensors.count',
    reason: `the parts have ${found} tensors, the key states ${stated}`,
  });
}
