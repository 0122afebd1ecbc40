// Changes of a data folder: their order, what a failure leaves, and what closing waits for.
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { DataFolder } from '../../../src/gateway/http/data-folder.ts';

let path = '';
const log: string[] = [];
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), 'kvasir-data-'));
  log.length = 0;
});
afterEach(() => rmSync(path, { recursive: true }));

const open = () => new DataFolder(path, (line) => log.push(line));
const text = (name: string) => readFileSync(join(path, name), 'utf8');

it('changes of one name take effect in the order of the calls, each before its promise resolves', async () => {
  const folder = open();
  const large = 'x'.repeat(4 << 20);
  const seen: string[] = [];
  const first = folder.write('a', large).then(() => seen.push(`first ${text('a').length}`));
  const second = folder.write('a', 'small').then(() => seen.push(`second ${text('a')}`));
  expect(existsSync(join(path, 'a'))).toBe(false);
  await Promise.all([first, second]);
  expect(seen).toEqual([`first ${large.length}`, 'second small']);
  await Promise.all([
    folder.append('b', 'one'),
    folder.append('b', 'two'),
    folder.remove('a'),
    folder.append('b', 'three'),
  ]);
  expect(text('b')).toBe('one\ntwo\nthree\n');
  expect(readdirSync(path)).toEqual(['b']);
});

it('a failed write keeps the old file, leaves no temporary file, and does not fail the writes behind it', async () => {
  const folder = open();
  // A file cannot replace a folder: the write fails after its bytes are on disk.
  mkdirSync(join(path, 'a', 'inner'), { recursive: true });
  const failed = folder.write('a', 'new');
  const removed = failed.catch(() => rmSync(join(path, 'a'), { recursive: true }));
  await expect(failed).rejects.toMatchObject({
    status: 503,
    message: expect.stringMatching(/cannot be written: E\w+$/),
  });
  await removed;
  expect(readdirSync(path)).toEqual([]);
  expect(log).toEqual([expect.stringMatching(/^Cannot write .*\/a: E\w+$/)]);
  mkdirSync(join(path, 'b', 'inner'), { recursive: true });
  const appends = [folder.write('c', 'one'), folder.write('b', 'x'), folder.append('c', 'two')];
  expect((await Promise.allSettled(appends)).map(({ status }) => status)).toEqual([
    'fulfilled',
    'rejected',
    'fulfilled',
  ]);
  const behind = [folder.append('b', 'fails'), folder.remove('c')];
  expect((await Promise.allSettled(behind)).map(({ status }) => status)).toEqual(['rejected', 'fulfilled']);
  expect(readdirSync(path)).toEqual(['b']);
});

it('closing waits for pending changes, also of folders within, and refuses later ones', async () => {
  const folder = open();
  const inner = folder.within('files');
  void folder.write('a', 'kept');
  void inner.write('b', 'kept too');
  const closed = folder.close();
  await expect(inner.write('c', 'late')).rejects.toMatchObject({ status: 503 });
  await closed;
  expect([text('a'), text('files/b'), readdirSync(join(path, 'files'))]).toEqual(['kept', 'kept too', ['b']]);
});
