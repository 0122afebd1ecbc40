// One process at a time, by files alone: holders take rising numbers, and what a dead one left is passed by.
import { mkdirSync, readdirSync, readFileSync, readlinkSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { rename, rm } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { HubError } from './errors.ts';
import type { Sleep } from './retry.ts';

const heartbeatMs = 5_000;
const pollMs = 200;
/** A holder on another machine that shows no sign of life for so long is dead. */
const foreignSilenceMs = 90_000;

interface Holder {
  /** Machine and process namespace: only inside one does a process id say something. */
  readonly machine: string;
  readonly pid: number;
  /** When the process began, so that its id may be used again. */
  readonly started: string;
}

export interface LockOptions {
  readonly signal: AbortSignal;
  readonly sleep: Sleep;
  /** Called once, with words for the holder. */
  readonly onWait: (holder: string) => void;
  readonly nowMs?: () => number;
}

/**
 * The folder holds `kvasir-N.lock` of a holder or `kvasir-N.free` of the last one; the highest N counts. To take it is to create
 * the next number, which one process alone can; so two that find the same dead holder cannot both follow it.
 */
export class FolderLock {
  readonly #folder: string;
  readonly #number: number;
  readonly #heartbeat: NodeJS.Timeout;

  /** @param number whose file this process has just created: use `acquire` */
  constructor(folder: string, number: number) {
    this.#folder = folder;
    this.#number = number;
    this.#heartbeat = setInterval(() => touch(lockPath(folder, number)), heartbeatMs);
    this.#heartbeat.unref();
  }

  /** Waits while another process holds it. @throws HubError (interrupted) */
  static async acquire(folder: string, { signal, sleep, onWait, nowMs }: LockOptions): Promise<FolderLock> {
    const watch = new Watch(nowMs);
    for (let told = false; ; ) {
      const found = await attempt(folder, watch);
      if (found instanceof FolderLock) return found;
      if (!told) onWait(found);
      told = true;
      await sleep(pollMs, signal);
      if (signal.aborted) throw new HubError('interrupted', `Interrupted while waiting for ${found}`);
    }
  }

  /** The lock, or words for its holder. */
  static tryAcquire(folder: string): Promise<FolderLock | string> {
    return attempt(folder, new Watch());
  }

  async release(): Promise<void> {
    clearInterval(this.#heartbeat);
    await rename(lockPath(this.#folder, this.#number), freePath(this.#folder, this.#number)).catch(() => undefined);
  }
}

async function attempt(folder: string, watch: Watch): Promise<FolderLock | string> {
  mkdirSync(folder, { recursive: true });
  const last = newest(folder);
  if (last?.held === true) {
    const holder = readHolder(lockPath(folder, last.number));
    if (!isDead(holder) && !watch.isSilent(lockPath(folder, last.number), holder)) return words(holder);
  }
  const number = (last?.number ?? 0) + 1;
  try {
    writeFileSync(lockPath(folder, number), JSON.stringify(thisProcess()), { flag: 'wx' });
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'EEXIST') return 'another process';
    throw error;
  }
  // Whoever looked long ago may have taken a number that is long over.
  if ((newest(folder)?.number ?? 0) > number) {
    await rm(lockPath(folder, number), { force: true });
    return 'another process';
  }
  for (const { number: old, name } of entries(folder)) if (old < number) await rm(join(folder, name), { force: true });
  return new FolderLock(folder, number);
}

function lockPath(folder: string, number: number): string {
  return join(folder, `kvasir-${number}.lock`);
}

function freePath(folder: string, number: number): string {
  return join(folder, `kvasir-${number}.free`);
}

interface Entry {
  readonly name: string;
  readonly number: number;
  readonly held: boolean;
}

function entries(folder: string): Entry[] {
  return readdirSync(folder).flatMap((name) => {
    const { number, state } = /^kvasir-(?<number>\d{1,15})\.(?<state>lock|free)$/.exec(name)?.groups ?? {};
    return number === undefined ? [] : [{ name, number: Number(number), held: state === 'lock' }];
  });
}

function newest(folder: string): Entry | undefined {
  return entries(folder).reduce<Entry | undefined>(
    (best, entry) => (best === undefined || entry.number > best.number ? entry : best),
    undefined,
  );
}

/** undefined: being written, or of an unknown kind. */
function readHolder(path: string): Holder | undefined {
  try {
    const { machine, pid, started } = JSON.parse(readFileSync(path, 'utf8')) as Partial<Holder>;
    if (typeof machine !== 'string' || typeof pid !== 'number' || typeof started !== 'string') return undefined;
    return { machine, pid, started };
  } catch {
    return undefined;
  }
}

function words(holder: Holder | undefined): string {
  if (holder === undefined) return 'another process';
  return holder.machine === machine() ? `process ${holder.pid}` : `process ${holder.pid} on another machine`;
}

function isDead(holder: Holder | undefined): boolean {
  if (holder === undefined || holder.machine !== machine()) return false;
  try {
    process.kill(holder.pid, 0);
  } catch (error) {
    return error instanceof Error && 'code' in error && error.code === 'ESRCH';
  }
  return startOf(holder.pid) !== holder.started;
}

function thisProcess(): Holder {
  return { machine: machine(), pid: process.pid, started: startOf(process.pid) };
}

function machine(): string {
  return [hostname(), readOr('/proc/sys/kernel/random/boot_id'), linkOr('/proc/self/ns/pid')].join(' ');
}

/** Field 22 of Linux's stat: ticks since boot. Elsewhere unknown, and the same for all. */
function startOf(pid: number): string {
  const stat = readOr(`/proc/${pid}/stat`);
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  // Field 3. The id of one that was killed lives on until its parent asks for it: in a container, perhaps never.
  return fields[0] === 'Z' ? 'ended' : (fields[19] ?? '');
}

function readOr(path: string): string {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch {
    return '';
  }
}

function linkOr(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return '';
  }
}

function touch(path: string): void {
  try {
    const now = new Date();
    utimesSync(path, now, now);
  } catch {
    // Passed by after a long sleep of this machine: what is being written is the same bytes at the same places.
  }
}

/** Sees whether a holder's file stands still, by this process's own clock: those of two machines differ. */
class Watch {
  readonly #nowMs: () => number;
  #seen = '';
  #sinceMs = 0;

  constructor(nowMs: () => number = () => performance.now()) {
    this.#nowMs = nowMs;
  }

  isSilent(path: string, holder: Holder | undefined): boolean {
    if (holder?.machine === machine()) return false;
    const stat = statSync(path, { throwIfNoEntry: false });
    const seen = `${path} ${stat?.mtimeMs}`;
    const nowMs = this.#nowMs();
    if (seen !== this.#seen) this.#sinceMs = nowMs;
    this.#seen = seen;
    return nowMs - this.#sinceMs > foreignSilenceMs;
  }
}
