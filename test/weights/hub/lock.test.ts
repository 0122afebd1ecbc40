// The lock between processes: one process holds it, others wait, and a dead holder blocks nothing.
import { spawn } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { FolderLock } from '../../../src/weights/hub/lock.ts';
import { temporaryFolder } from '../temporary.ts';

const root = temporaryFolder();
const built = new URL('../../../dist/weights/hub/lock.js', import.meta.url);

/** Yields to the event loop without a delay. */
const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
const signal = new AbortController().signal;

/** Takes the lock of a folder, prints its process id and stays alive. */
function holdingScript(folder: string): string {
  return `
    const { FolderLock } = await import(${JSON.stringify(built.href)});
    await FolderLock.tryAcquire(${JSON.stringify(folder)});
    console.log(process.pid);
    setInterval(() => {}, 1000);`;
}

async function acquired(folder: string): Promise<FolderLock> {
  const lock = await FolderLock.tryAcquire(folder);
  if (!(lock instanceof FolderLock)) throw new Error(`held by ${lock}`);
  return lock;
}

describe('FolderLock', () => {
  it('has one holder at a time and passes to the next', async () => {
    const folder = join(root.path, 'one');
    const first = await acquired(folder);
    expect(await FolderLock.tryAcquire(folder)).toBe(`process ${process.pid}`);
    const reported: string[] = [];
    const waiting = FolderLock.acquire(
      folder,
      { signal, sleep: nextTurn },
      { onWait: (holder) => reported.push(holder) },
    );
    await nextTurn();
    await first.release();
    await (await waiting).release();
    expect(reported).toEqual([`process ${process.pid}`]);
    expect(readdirSync(folder)).toEqual(['kvasir-2.free']);
  });

  it('has one holder at a time when many acquire it at once', async () => {
    const folder = join(root.path, 'many');
    let inside = 0;
    let insideMax = 0;
    const useLock = async (): Promise<void> => {
      const lock = await FolderLock.acquire(folder, { signal, sleep: nextTurn }, { onWait: () => {} });
      inside++;
      insideMax = Math.max(insideMax, inside);
      await nextTurn();
      inside--;
      await lock.release();
    };
    await Promise.all(Array.from({ length: 20 }, useLock));
    expect(insideMax).toBe(1);
  });

  it('stops waiting on a signal', async () => {
    const folder = join(root.path, 'stopped');
    const lock = await acquired(folder);
    const stop = new AbortController();
    const waiting = FolderLock.acquire(
      folder,
      { signal: stop.signal, sleep: nextTurn },
      { onWait: () => stop.abort() },
    );
    await expect(waiting).rejects.toMatchObject({ kind: 'interrupted' });
    await lock.release();
  });

  it('is free at once after its holder is killed', async () => {
    const folder = join(root.path, 'killed');
    const child = spawn(process.execPath, ['--input-type=module', '--eval', holdingScript(folder)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await new Promise((resolve) => child.stdout.once('data', resolve));
    expect(await FolderLock.tryAcquire(folder)).toBe(`process ${child.pid}`);
    child.kill('SIGKILL');
    await new Promise((resolve) => child.once('exit', resolve));
    await (await acquired(folder)).release();
  });

  it.skipIf(process.platform !== 'linux')(
    'is free after its holder is killed and not reaped by its parent',
    async () => {
      const folder = join(root.path, 'zombie');
      // exec replaces the shell by a program that never reaps its children.
      const arguments_ = ['-c', '"$0" --input-type=module --eval "$1" & exec sleep 60'];
      const parent = spawn('sh', [...arguments_, process.execPath, holdingScript(folder)], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      try {
        const said = await new Promise((resolve) => parent.stdout.once('data', resolve));
        const pid = Number(String(said));
        expect(await FolderLock.tryAcquire(folder)).toBe(`process ${pid}`);
        process.kill(pid, 'SIGKILL');
        while (!readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z ')) await nextTurn();
        await (await acquired(folder)).release();
      } finally {
        parent.kill('SIGKILL');
      }
    },
  );

  it('is not broken at once when acquired by another machine or half written', async () => {
    const folder = join(root.path, 'foreign');
    mkdirSync(folder);
    writeFileSync(join(folder, 'kvasir-7.lock'), JSON.stringify({ machine: 'other', pid: 1, started: '1' }));
    expect(await FolderLock.tryAcquire(folder)).toBe('process 1 on another machine');
    writeFileSync(join(folder, 'kvasir-7.lock'), '');
    expect(await FolderLock.tryAcquire(folder)).toBe('another process');
  });

  it('is broken when another machine sends no heartbeat for 90 s, by the clock of the waiting process', async () => {
    const folder = join(root.path, 'silent');
    mkdirSync(folder);
    const path = join(folder, 'kvasir-7.lock');
    writeFileSync(path, JSON.stringify({ machine: 'other', pid: 1, started: '1' }));
    let nowMs = 0;
    const beats = [40_000, 80_000];
    const sleep = async (): Promise<void> => {
      nowMs += 10_000;
      if (beats.includes(nowMs)) utimesSync(path, nowMs, nowMs);
    };
    const lock = await FolderLock.acquire(folder, { signal, sleep }, { onWait: () => {}, nowMs: () => nowMs });
    expect(nowMs).toBe(180_000);
    expect(readdirSync(folder)).toEqual(['kvasir-8.lock']);
    await lock.release();
  });

  it('is free when another process has the process id of its holder', async () => {
    const folder = join(root.path, 'again');
    const lock = await acquired(folder);
    const [name = ''] = readdirSync(folder);
    const holder = JSON.parse(readFileSync(join(folder, name), 'utf8')) as { started: string };
    // Without a known start time, any living process with that id counts as the holder.
    if (holder.started !== '') {
      writeFileSync(join(folder, name), JSON.stringify({ ...holder, started: '1' }));
      await (await acquired(folder)).release();
    }
    await lock.release();
  });
});
