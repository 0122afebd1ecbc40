// A recording's file: whole lines, bounded memory, and an end at the first failure.
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { AppendFile } from '../../../src/cli/serve/recording/append-file.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-append-'));
afterAll(() => rmSync(folder, { recursive: true }));
const omittedLine = (count: number): string => `omitted ${count}`;

it('writes lines in order into a new file of its owner', async () => {
  const path = join(folder, 'a');
  const options = { onFailed: () => {}, omittedLine };
  const file = await AppendFile.create(path, options);
  for (const line of ['one', 'two']) file.add(line);
  await new Promise((resolve) => setTimeout(resolve, 5));
  file.add('three');
  await file.close();
  expect(readFileSync(path, 'utf8')).toBe('one\ntwo\nthree\n');
  expect(statSync(path).mode & 0o777).toBe(0o600);
  await expect(AppendFile.create(path, options)).rejects.toThrow('the file exists: name a new one');
  await expect(AppendFile.create(join(folder, 'none', 'a'), options)).rejects.toThrow('ENOENT');
});

it('stops at the first failure, and reports it once', async () => {
  const failures: string[] = [];
  const written: string[] = [];
  const appendFile = (text: unknown): Promise<void> => {
    if (written.length === 1) return Promise.reject(Object.assign(new Error('full'), { code: 'ENOSPC' }));
    written.push(String(text));
    return Promise.resolve();
  };
  const file = new AppendFile(
    { appendFile, close: () => Promise.resolve() },
    { onFailed: ({ code }) => failures.push(String(code)), omittedLine },
  );
  for (const line of ['one', 'two', 'three']) {
    file.add(line);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  await file.close();
  expect(written).toEqual(['one\n']);
  expect(failures).toEqual(['ENOSPC']);
});

it('drops and counts lines while the disk is behind', async () => {
  const written: string[] = [];
  const appendFile = (text: unknown): Promise<void> => {
    written.push(String(text));
    return Promise.resolve();
  };
  const file = new AppendFile({ appendFile, close: () => Promise.resolve() }, { onFailed: () => {}, omittedLine });
  const long = 'x'.repeat(9 * 2 ** 20);
  for (let i = 0; i < 4; i++) file.add(long);
  await new Promise((resolve) => setTimeout(resolve, 20));
  file.add('next');
  await file.close();
  expect(written.join('').replaceAll(long, 'long')).toBe('long\nomitted 3\nnext\n');
});

it('closes in time though a write hangs, and reports it once', async () => {
  const failures: string[] = [];
  let fail = (_: Error): void => {};
  const appendFile = () => new Promise<void>((_, reject) => (fail = reject));
  const file = new AppendFile(
    { appendFile, close: () => Promise.resolve() },
    { onFailed: ({ code }) => failures.push(String(code)), omittedLine },
  );
  file.add('one');
  expect(await file.close(5)).toBe(false);
  fail(new Error('late'));
  await new Promise(setImmediate);
  expect(failures).toEqual(['ETIMEDOUT']);
});
